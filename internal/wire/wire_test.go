package wire

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"samovar/internal/block"
	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/volume"
)

// Every field of every kind comes back as it was sent, in order, whatever pieces the stream comes in.
func TestRoundTrip(t *testing.T) {
	readers := map[string]func(io.Reader) io.Reader{
		"whole":       func(r io.Reader) io.Reader { return r },
		"halves":      iotest.HalfReader,
		"single":      iotest.OneByteReader,
		"error early": iotest.DataErrReader,
	}
	for _, k := range allKinds() {
		for seed := range uint64(30) {
			rng, pool := rand.New(rand.NewPCG(seed, uint64(k))), block.NewPool()
			from, to := pair(k)
			var sent []replication.Message
			for range 1 + rng.IntN(6) {
				sent = append(sent, randomMessage(t, rng, pool, k))
			}
			stream := encode(t, from, sent...)
			for name, reader := range readers {
				d := NewDecoder(reader(bytes.NewReader(stream)), pool, to)
				got := 0
				for {
					batch, err := d.Next()
					if err == io.EOF {
						break
					}
					if err != nil {
						t.Fatalf("%s, seed %d, %s: %v", rules[k].name, seed, name, err)
					}
					for i := range batch {
						if got == len(sent) || !sameMessage(batch[i], sent[got]) {
							t.Fatalf("%s, seed %d, %s: message %d is\n%+v\nsent was\n%+v", rules[k].name, seed, name, got,
								batch[i], sent[min(got, len(sent)-1)])
						}
						release(&batch[i])
						got++
					}
				}
				if got != len(sent) {
					t.Fatalf("%s, seed %d, %s: %d of %d messages", rules[k].name, seed, name, got, len(sent))
				}
			}
			for i := range sent {
				release(&sent[i])
			}
		}
	}
}

// Long payloads and bodies take the ways past the buffer.
func TestRoundTripLong(t *testing.T) {
	rng, pool := rand.New(rand.NewPCG(1, 1)), block.NewPool()
	from, to := pair(replication.Write)
	to.Size = 1 << 40
	var sent []replication.Message
	for _, n := range []int{gathered - headerSize, gathered - headerSize + 1, bufferSize, 1 << 20, 4096, 2<<20 + 512, 512} {
		m := randomMessage(t, rng, pool, replication.Write)
		m.Range.Length = uint64(n)
		release(&m)
		m.Payload = randomBuffer(rng, pool, n)
		sent = append(sent, m)
		c := randomMessage(t, rng, pool, replication.CatchUp)
		for b := uint64(0); b < uint64(n/128); b++ {
			c.Bitmap.Add(2*b, 2*b+1)
		}
		sent = append(sent, c)
	}
	d := NewDecoder(bytes.NewReader(encode(t, from, sent...)), pool, to)
	for len(sent) > 0 {
		batch, err := d.Next()
		if err != nil {
			t.Fatal(err)
		}
		for i := range batch {
			if !sameMessage(batch[i], sent[i]) {
				t.Fatalf("message of %d bytes differs", sent[i].Range.Length)
			}
		}
		sent = sent[len(batch):]
	}
	if _, err := d.Next(); err != io.EOF {
		t.Fatal(err)
	}
}

// Truncated anywhere, a stream gives the messages before the cut and then the cut.
func TestTruncated(t *testing.T) {
	buf := make([]byte, bufferSize)
	for _, k := range allKinds() {
		rng, pool := rand.New(rand.NewPCG(2, uint64(k))), block.NewPool()
		from, to := pair(k)
		sent := []replication.Message{randomMessage(t, rng, pool, k), randomMessage(t, rng, pool, k)}
		first := len(encode(t, from, sent[0]))
		stream := encode(t, from, sent...)
		for n := range stream {
			if n%first > 200 && n%first < first-3 && n%41 != 0 {
				continue // inside of a long body or payload
			}
			d := &Decoder{session: to, stream: bytes.NewReader(stream[:n]), pool: pool, buf: buf}
			batch, err := d.Next()
			if whole := n / first; len(batch) != min(whole, 1) || whole == 0 && err == nil {
				t.Fatalf("%s cut at %d of %d: %d messages, %v", rules[k].name, n, first, len(batch), err)
			}
			if len(batch) == 1 {
				if !sameMessage(batch[0], sent[0]) {
					t.Fatalf("%s cut at %d: a wrong message", rules[k].name, n)
				}
				_, err = d.Next()
			}
			if want := n == 0 || n == first; want != (err == io.EOF) || !want && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("%s cut at %d of %d: %v", rules[k].name, n, first, err)
			}
			if _, again := d.Next(); again != err {
				t.Fatalf("the error changed from %v to %v", err, again)
			}
		}
	}
}

// Every flipped bit is noticed at once: a frame that is whole never makes the receiver wait for more.
func TestBitFlips(t *testing.T) {
	buf := make([]byte, bufferSize)
	for _, k := range allKinds() {
		rng, pool := rand.New(rand.NewPCG(3, uint64(k))), block.NewPool()
		from, to := pair(k)
		m := randomMessage(t, rng, pool, k)
		m.Record, m.Configuration = nil, nil
		if rules[k].needs&(1<<fieldRecord) != 0 {
			m.Record = &volume.ChangeRecord{Pool: volume.PoolID{1}, Start: 5}
		}
		if rules[k].needs&(1<<fieldConfiguration) != 0 {
			m.Configuration = &volume.Configuration{Name: "a", Size: 1 << 20}
		}
		stream := encode(t, from, m)
		for n := range len(stream) * 8 {
			if n > 8*1500 && n%11 != 0 {
				continue
			}
			stream[n/8] ^= 1 << (n % 8)
			d := &Decoder{session: to, stream: bytes.NewReader(stream), pool: pool, buf: buf}
			_, err := d.Next()
			wantFault(t, err, fault.Corrupt)
			stream[n/8] ^= 1 << (n % 8)
		}
	}
}

// The acceptor learns from the first frame what the session is for.
func TestBinding(t *testing.T) {
	rng, pool := rand.New(rand.NewPCG(4, 4)), block.NewPool()
	for _, k := range []replication.Kind{replication.Hello, replication.Fetch} {
		from, to := pair(k)
		m := randomMessage(t, rng, pool, k)
		unbound := to
		unbound.Volume, unbound.Pool, unbound.Epoch, unbound.Size = volume.ID{}, volume.PoolID{}, 0, 0
		d := NewDecoder(bytes.NewReader(encode(t, from, m, m)), pool, unbound)
		if batch, err := d.Next(); err != nil || len(batch) != 2 || !sameMessage(batch[1], m) {
			t.Fatal(batch, err)
		}
		got := d.Session()
		got.Size = to.Size
		if got != to {
			t.Fatalf("bound to %+v, want %+v", got, to)
		}
	}
	from, to := pair(replication.Sync)
	to.Volume = volume.ID{}
	m := randomMessage(t, rng, pool, replication.Sync)
	_, err := NewDecoder(bytes.NewReader(encode(t, from, m)), pool, to).Next()
	wantFault(t, err, fault.Corrupt)
}

// A receiver refuses frames of any other session, epoch, volume, pool or sender; a message before them counts.
func TestMismatch(t *testing.T) {
	rng, pool := rand.New(rand.NewPCG(5, 5)), block.NewPool()
	for _, test := range []struct {
		name   string
		kind   replication.Kind
		change func(s *Session)
		want   fault.Kind
	}{
		{"session", replication.Read, func(s *Session) { s.Number++ }, fault.Foreign},
		{"epoch", replication.Read, func(s *Session) { s.Epoch++ }, fault.Foreign},
		{"volume", replication.Hello, func(s *Session) { s.Volume[0]++ }, fault.Foreign},
		{"pool", replication.Hello, func(s *Session) { s.Pool[15]++ }, fault.Foreign},
		{"pool of the answer", replication.Welcome, func(s *Session) { s.Pool[15]++ }, fault.Foreign},
		{"sender", replication.Read, func(s *Session) { s.Remote = Copier }, fault.Corrupt},
		{"version", replication.Read, func(s *Session) { s.Version++ }, fault.Corrupt},
		{"refusal by another pool", replication.Refuse, func(s *Session) { s.Pool[15]++ }, fault.None},
	} {
		from, to := pair(test.kind)
		m := randomMessage(t, rng, pool, test.kind)
		good := to
		test.change(&to)
		if good == to {
			t.Fatal("nothing changed")
		}
		_, err := NewDecoder(bytes.NewReader(encode(t, from, m)), pool, to).Next()
		if got := fault.KindOf(err); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
	}
	from, to := pair(replication.Read)
	stream := encode(t, from, randomMessage(t, rng, pool, replication.Read))
	from.Epoch++
	stream = append(stream, encode(t, from, randomMessage(t, rng, pool, replication.Read))...)
	d := NewDecoder(bytes.NewReader(stream), pool, to)
	if batch, err := d.Next(); len(batch) != 1 || err != nil {
		t.Fatal(batch, err)
	}
	_, err := d.Next()
	wantFault(t, err, fault.Foreign)
}

// The sender's own mistakes do not leave, and leave no trace in the batch.
func TestSenderRefuses(t *testing.T) {
	rng, pool := rand.New(rand.NewPCG(6, 6)), block.NewPool()
	from, to := pair(replication.Write)
	for name, change := range map[string]func(m *replication.Message){
		"kind":          func(m *replication.Message) { m.Kind = 99 },
		"direction":     func(m *replication.Message) { m.Kind = replication.Ack },
		"volume":        func(m *replication.Message) { m.Volume[3]++ },
		"pool":          func(m *replication.Message) { m.Pool[3]++ },
		"forward":       func(m *replication.Message) { m.Forward = []volume.PoolID{{1}} },
		"length":        func(m *replication.Message) { m.Range.Length++ },
		"range":         func(m *replication.Message) { m.Range.Offset = volume.MaxSize },
		"overflow":      func(m *replication.Message) { m.Range.Offset = ^uint64(0) - 10 },
		"type":          func(m *replication.Message) { m.Payload = "text" },
		"no payload":    func(m *replication.Message) { m.Payload = nil },
		"segments":      func(m *replication.Message) { m.Payload = randomSegments(rng, pool) },
		"source":        func(m *replication.Message) { m.Kind, m.Source, m.Payload = replication.Copy, volume.PoolID{}, nil },
		"bitmap":        func(m *replication.Message) { m.Kind, m.Bitmap, m.Payload = replication.CatchUp, nil, nil },
		"fence epoch":   func(m *replication.Message) { m.Kind, m.Payload = replication.Hello, nil; m.Fence.Epoch = 99 },
		"extra payload": func(m *replication.Message) { m.Kind = replication.Sync },
		"history": func(m *replication.Message) {
			m.Knowledge = &replication.Knowledge{History: make([]volume.GenerationID, 9)}
		},
	} {
		good := randomMessage(t, rng, pool, replication.Write)
		bad := good
		change(&bad)
		e := NewEncoder(from)
		for _, m := range []*replication.Message{&good, &bad, &good} {
			retain(m)
			if err := e.Append(m); (err != nil) != (m == &bad) {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if e.Len() != 2 {
			t.Fatalf("%s: %d frames", name, e.Len())
		}
		var out bytes.Buffer
		if err := e.Flush(&out); err != nil {
			t.Fatal(err)
		}
		batch, err := NewDecoder(&out, pool, to).Next()
		if err != nil || len(batch) != 2 || !sameMessage(batch[0], good) || !sameMessage(batch[1], good) {
			t.Fatalf("%s: the batch is spoilt: %d messages, %v", name, len(batch), err)
		}
	}
}

// What does not fit into a body stays with the sender.
func TestLongBodyIsNotSent(t *testing.T) {
	if raceEnabled {
		t.Skip("slow, and nothing to race")
	}
	from, _ := pair(replication.Welcome)
	e := NewEncoder(from)
	m := replication.Message{Kind: replication.Welcome, Volume: from.Volume, Pool: from.Pool,
		Knowledge: &replication.Knowledge{Doubt: make([]volume.Range, MaxBody/16)}}
	wantFault(t, e.Append(&m), fault.Invalid)
	if e.Len() != 0 || e.Size() != 0 {
		t.Fatal("it left something in the batch")
	}
}

// Holes of a read are not sent; the engine gets zeroes. A plain buffer serves as the answer to a Fetch.
func TestReadWithHoles(t *testing.T) {
	rng, pool := rand.New(rand.NewPCG(7, 7)), block.NewPool()
	from, to := pair(replication.Ack)
	for range 50 {
		s := randomSegments(rng, pool)
		var want []byte
		for _, g := range s.List {
			if g.Data != nil {
				want = append(want, g.Data.Bytes()...)
			} else {
				want = append(want, make([]byte, g.Range.Length)...)
			}
		}
		m := randomMessage(t, rng, pool, replication.Ack)
		release(&m)
		m.Range, m.Payload = s.Range(), s
		batch, err := NewDecoder(bytes.NewReader(encode(t, from, m)), pool, to).Next()
		if err != nil || !bytes.Equal(batch[0].Payload.(*block.Buffer).Bytes(), want) {
			t.Fatal("a read with holes differs", err)
		}
	}
	b := randomBuffer(rng, pool, 700)
	m := replication.Message{Kind: replication.Fetched, Range: volume.Range{Offset: 512, Length: 700}, Payload: b,
		Volume: from.Volume, Pool: from.Pool}
	batch, err := NewDecoder(bytes.NewReader(encode(t, from, m)), pool, to).Next()
	if err != nil {
		t.Fatal(err)
	}
	want := &Segments{List: []Segment{{Range: m.Range, Data: b}}}
	if m.Payload = want; !sameMessage(batch[0], m) {
		t.Fatalf("%+v", batch[0])
	}
}

// Texts are cut, not refused; a batch is written as few pieces, and Done releases every payload once.
func TestBatch(t *testing.T) {
	pool := block.NewPool()
	from, to := pair(replication.Refuse)
	m := replication.Message{Kind: replication.Refuse, Text: strings.Repeat("€", maxText), Volume: from.Volume, Pool: from.Pool}
	batch, err := NewDecoder(bytes.NewReader(encode(t, from, m)), pool, to).Next()
	if err != nil || batch[0].Text != strings.Repeat("€", maxText/3) {
		t.Fatal(err)
	}
	e := NewEncoder(from)
	ack := replication.Message{Kind: replication.Ack, ID: 1, Volume: from.Volume, Pool: from.Pool}
	for range 10 {
		if err := e.Append(&ack); err != nil {
			t.Fatal(err)
		}
	}
	read := ack
	read.Range.Length = 4096
	b := pool.Get(4096)
	read.Payload = b
	if err := e.Append(&read); err != nil {
		t.Fatal(err)
	}
	if err := e.Append(&ack); err != nil {
		t.Fatal(err)
	}
	if n := len(*e.Batch()); n != 3 || e.Len() != 12 || e.Size() != 12*headerSize+4096 {
		t.Fatalf("%d pieces, %d frames, %d bytes", n, e.Len(), e.Size())
	}
	e.Done()
	func() {
		defer func() { _ = recover() }()
		b.Release()
		t.Error("Done did not release the payload")
	}()
	if e.Len() != 0 || e.Size() != 0 || len(*e.Batch()) != 0 {
		t.Fatal("Done left something")
	}
	if slices.ContainsFunc(e.held[:cap(e.held)], func(b *block.Buffer) bool { return b != nil }) {
		t.Fatal("Done keeps a payload from the collector")
	}
}
