package wire

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"testing/iotest"

	"samovar/internal/block"
	"samovar/internal/replication"
)

// FuzzDecode gives a decoder any bytes, as they are and with their sums made right. The first byte chooses the
// receiver.
func FuzzDecode(f *testing.F) {
	for _, m := range goldenMessages(block.NewPool()) {
		from, _ := pair(m.Kind)
		b := encode(f, from, m)
		f.Add(byte(rules[m.Kind].from), append(b, b...))
	}
	pool, buf := block.NewPool(), make([]byte, bufferSize)
	f.Fuzz(func(t *testing.T, sender byte, stream []byte) {
		decodeAnything(t, pool, buf, Purpose(sender%3+1), stream)
		decodeAnything(t, pool, buf, Purpose(sender%3+1), resealAll(stream))
	})
}

// TestMutations does the same to golden frames with a few bytes changed, so that an ordinary run has some of it.
func TestMutations(t *testing.T) {
	pool, buf := block.NewPool(), make([]byte, bufferSize)
	rounds := uint64(800)
	if raceEnabled {
		rounds = 100
	}
	accepted := 0
	for i, m := range goldenMessages(pool) {
		from, _ := pair(m.Kind)
		frame := encode(t, from, m)
		for seed := range rounds {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			b := bytes.Clone(frame)
			for range 1 + rng.IntN(3) {
				at := rng.IntN(len(b))
				if rng.IntN(2) == 0 && len(b) > headerSize {
					at = headerSize + rng.IntN(len(b)-headerSize) // more in the body and the table
				}
				b[at] = byte(rng.Uint32() >> rng.IntN(8))
			}
			accepted += decodeAnything(t, pool, buf, rules[m.Kind].from, resealAll(b))
			if t.Failed() {
				t.Fatalf("%s, seed %d", rules[m.Kind].name, seed)
			}
		}
	}
	if accepted == 0 {
		t.Error("no changed frame was accepted: the test tests nothing")
	}
}

// resealAll copies a stream and makes the sums of its frames right.
func resealAll(stream []byte) []byte {
	sealed := bytes.Clone(stream)
	for rest := sealed; len(rest) >= headerSize; {
		reseal(rest)
		n := headerSize + uint64(binary.LittleEndian.Uint32(rest[12:])) + uint64(binary.LittleEndian.Uint32(rest[16:]))
		if n > uint64(len(rest)) {
			break
		}
		rest = rest[n:]
	}
	return sealed
}

// decodeAnything decodes a stream as a peer and as an acceptor at the start of a session. The decoder must not
// panic, and what it accepts must survive being sent again. It counts the messages.
func decodeAnything(t *testing.T, pool *block.Pool, buf []byte, remote Purpose, stream []byte) (accepted int) {
	local := Replica
	if remote == Replica {
		local = Engine
	}
	for _, bound := range []bool{true, false} {
		s := testSession(local, remote)
		if !bound {
			s = Session{Number: s.Number, Version: s.Version, Local: local, Remote: remote}
		}
		d := &Decoder{session: s, stream: iotest.HalfReader(bytes.NewReader(stream)), pool: pool, buf: buf}
		for {
			batch, err := d.Next()
			if err != nil {
				break
			}
			for i := range batch {
				sendAgain(t, d.Session(), pool, &batch[i])
				release(&batch[i])
				accepted++
			}
		}
	}
	return accepted
}

func sendAgain(t *testing.T, s Session, pool *block.Pool, m *replication.Message) {
	to := s
	s.Local, s.Remote = s.Remote, s.Local
	stream := encode(t, s, *m)
	again, err := NewDecoder(bytes.NewReader(stream), pool, to).Next()
	if err != nil || len(again) != 1 || !sameMessage(again[0], *m) {
		t.Fatalf("%+v\nwas sent again as\n%+v, %v", *m, again, err)
	}
	release(&again[0])
}
