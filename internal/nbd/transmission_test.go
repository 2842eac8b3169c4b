package nbd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"samovar/internal/block"
	"samovar/internal/fault"
)

const testSize = 1 << 20

func one(m *memory) *volumes { return newVolumes(map[string]*memory{"vol": m}) }

func TestEveryCommand(t *testing.T) {
	m := newMemory(testSize)
	s := serve(t, "unix", Options{Opener: one(m)})
	r := s.enter(t, "vol")
	data := pattern(8192, 1)
	r.request(cmdWrite, 0, 1, 4096, len(data), data)
	r.want(1, errnoOK)
	r.request(cmdRead, cmdFlagFUA, 2, 4096, len(data), nil) // FUA means nothing here and is allowed
	r.want(2, errnoOK)
	if !bytes.Equal(r.receive(len(data)), data) {
		t.Error("read other data than was written")
	}
	if _, stable := m.content(); bytes.Equal(stable[4096:4096+len(data)], data) {
		t.Error("a plain write is stable")
	}
	r.request(cmdFlush, cmdFlagFUA, 3, 77, 99, nil) // offset and length are reserved
	r.want(3, errnoOK)
	r.request(cmdWrite, cmdFlagFUA, 4, 65536, 512, data[:512])
	r.want(4, errnoOK)
	r.request(cmdTrim, cmdFlagFUA, 5, 4096, 512, nil)
	r.want(5, errnoOK)
	r.request(cmdWriteZeroes, cmdFlagFUA|cmdFlagNoHole, 6, 4608, 512, nil)
	r.want(6, errnoOK)
	r.request(cmdDisc, 0, 0, 0, 0, nil)
	r.ended()

	want := make([]byte, testSize)
	copy(want[4096:], data)
	clear(want[4096:5120])
	copy(want[65536:], data[:512])
	if data, stable := m.content(); !bytes.Equal(data, want) || !bytes.Equal(stable, want) {
		t.Error("the device holds something else")
	}
	seen := m.seen()
	for i, want := range []block.Request{
		{Op: block.Write, Offset: 4096, Length: 8192}, {Op: block.Read, Offset: 4096, Length: 8192},
		{Op: block.Flush}, {Op: block.Write, FUA: true, Offset: 65536, Length: 512},
		{Op: block.Trim, FUA: true, Offset: 4096, Length: 512},
		{Op: block.Zero, FUA: true, NoHole: true, Offset: 4608, Length: 512},
	} {
		got := seen[i]
		got.Data, got.Done = nil, nil
		if got.Op != want.Op || got.FUA != want.FUA || got.NoHole != want.NoHole || got.Offset != want.Offset ||
			got.Length != want.Length {
			t.Errorf("request %d is %+v, want %+v", i, got, want)
		}
	}
	// The stream ended only after the opening was given back.
	if now, ever := m.counts(); now != 0 || ever != 1 {
		t.Errorf("%d openings of %d are still there", now, ever)
	}
}

// Every refusal by the server, and after each the session is still in step.
func TestRefusedRequests(t *testing.T) {
	const top = testSize
	tests := []struct {
		name     string
		readOnly bool
		kind     command
		flags    uint16
		offset   uint64
		length   int
		want     errno
	}{
		{"read unaligned offset", false, cmdRead, 0, 1, 512, errnoInval},
		{"read unaligned length", false, cmdRead, 0, 0, 513, errnoInval},
		{"read nothing", false, cmdRead, 0, 0, 0, errnoInval},
		{"read beyond the end", false, cmdRead, 0, top - 512, 1024, errnoInval},
		{"read at the end", false, cmdRead, 0, top, 512, errnoInval},
		{"read where offset and length overflow", false, cmdRead, 0, 1<<64 - 512, 1024, errnoInval},
		{"read too long", false, cmdRead, 0, 0, maxPayloadBytes + 512, errnoInval},
		{"write unaligned offset", false, cmdWrite, 0, 511, 512, errnoInval},
		{"write unaligned length", false, cmdWrite, 0, 0, 100, errnoInval},
		{"write nothing", false, cmdWrite, 0, 0, 0, errnoInval},
		{"write beyond the end", false, cmdWrite, 0, top - 512, 1024, errnoNoSpace},
		{"write large beyond the end", false, cmdWrite, 0, top, 256 << 10, errnoNoSpace},
		{"write too long", false, cmdWrite, 0, 0, maxPayloadBytes + 512, errnoInval},
		{"write no-hole", false, cmdWrite, cmdFlagNoHole, 0, 512, errnoInval},
		{"write unknown flag", false, cmdWrite, 1 << 9, 0, 512, errnoInval},
		{"write read-only", true, cmdWrite, 0, 0, 512, errnoPerm},
		{"trim read-only", true, cmdTrim, 0, 0, 512, errnoPerm},
		{"zero read-only", true, cmdWriteZeroes, 0, 0, 512, errnoPerm},
		{"trim beyond the end", false, cmdTrim, 0, top, 512, errnoInval},
		{"trim nothing", false, cmdTrim, 0, 0, 0, errnoInval},
		{"zero beyond the end", false, cmdWriteZeroes, 0, top, 512, errnoNoSpace},
		{"zero unaligned", false, cmdWriteZeroes, 0, 256, 512, errnoInval},
		{"zero with the fast flag", false, cmdWriteZeroes, 1 << 4, 0, 512, errnoInval},
		{"block status", false, 7, 0, 0, 512, errnoInval},
		{"cache", false, 5, 0, 0, 512, errnoInval},
		{"unknown command", false, 1000, 0, 0, 512, errnoInval},
	}
	open, closed := newMemory(top), newMemory(top)
	closed.readOnly = true
	s := serve(t, "unix", Options{Opener: newVolumes(map[string]*memory{"open": open, "closed": closed})})
	sessions := map[bool]raw{false: s.enter(t, "open"), true: s.enter(t, "closed")}
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := sessions[test.readOnly]
			r.t = t
			var data []byte
			if test.kind == cmdWrite {
				data = make([]byte, test.length)
			}
			r.request(test.kind, test.flags, uint64(i), test.offset, test.length, data)
			r.want(uint64(i), test.want)
			r.request(cmdRead, 0, 1000, 0, 512, nil)
			r.want(1000, errnoOK)
			r.receive(512)
		})
	}
}

// What the device answers, and what the client is told.
func TestDeviceErrors(t *testing.T) {
	want := map[fault.Kind]errno{
		fault.Invalid: errnoInval, fault.IO: errnoIO, fault.NoSpace: errnoNoSpace, fault.Fenced: errnoIO,
		fault.Busy: errnoIO, fault.Unavailable: errnoIO, fault.Corrupt: errnoIO, fault.Foreign: errnoIO,
		fault.Newer: errnoIO, fault.NotFound: errnoIO, fault.Exists: errnoIO, fault.Stale: errnoIO,
		fault.Aborted: errnoIO, fault.Shutdown: errnoShutdown, fault.Permission: errnoPerm, fault.Internal: errnoIO,
	}
	m := newMemory(testSize)
	s := serve(t, "unix", Options{Opener: one(m)})
	r := s.enter(t, "vol")
	for kind := fault.Invalid; kind <= fault.Internal; kind++ {
		m.failWith(func(*block.Request) error { return fault.New(kind, "test", "") })
		for command, length := range map[command]int{cmdRead: 512, cmdWrite: 512, cmdTrim: 512, cmdWriteZeroes: 512, cmdFlush: 0} {
			var data []byte
			if command == cmdWrite {
				data = make([]byte, length)
			}
			r.request(command, 0, uint64(kind), 0, length, data)
			r.want(uint64(kind), want[kind])
		}
		if back := kindOf(want[kind]); want[kind] != errnoIO && back != kind {
			t.Errorf("%v becomes %v at the client", kind, back)
		}
	}
	m.failWith(func(*block.Request) error { return errors.New("an error without a kind") })
	r.request(cmdFlush, 0, 1, 0, 0, nil)
	r.want(1, errnoIO)
}

// A device that breaks its contract must not bring the client out of step.
func TestReadOfWrongLength(t *testing.T) {
	m := newMemory(testSize)
	m.hold = true
	s := serve(t, "unix", Options{Opener: one(m)})
	r := s.enter(t, "vol")
	for _, data := range []*block.Buffer{nil, m.pool.Get(511)} {
		r.request(cmdRead, 0, 5, 0, 512, nil)
		q := m.next(t)
		q.Data = data
		q.Done(q, nil)
		r.want(5, errnoIO)
	}
}

// The announced size may be outdated: a device that grew is asked again.
func TestGrownDevice(t *testing.T) {
	m := newMemory(testSize)
	s := serve(t, "unix", Options{Opener: one(m)})
	r := s.enter(t, "vol")
	m.mu.Lock()
	m.data = make([]byte, 2*testSize)
	m.mu.Unlock()
	r.request(cmdRead, 0, 1, testSize, 512, nil)
	r.want(1, errnoOK)
	r.receive(512)
	r.request(cmdRead, 0, 2, 2*testSize, 512, nil)
	r.want(2, errnoInval)
}

// What one read of the socket brings is one Submit, in order, refusals left out.
func TestOneSegmentIsOneBatch(t *testing.T) {
	for _, network := range []string{"unix", "tcp"} {
		m := newMemory(testSize)
		s := serve(t, network, Options{Opener: one(m)})
		r := s.dial(t)
		// The requests come together with the choice of the export: the negotiation must not eat them.
		segment := openingBytes("vol")
		for i := range 20 {
			segment = append(segment, requestBytes(cmdRead, 0, uint64(i), uint64(i)*512, 512)...)
		}
		segment = append(segment, requestBytes(cmdTrim, 0, 98, 0, 0)...) // refused
		for i := range 4 {
			segment = append(segment, requestBytes(cmdWrite, 0, uint64(20+i), 0, 4096)...)
			segment = append(segment, make([]byte, 4096)...)
		}
		segment = append(segment, requestBytes(cmdFlush, 0, 99, 0, 0)...)
		r.send(segment)
		r.receive(18 + 10)
		seen := map[uint64]bool{}
		for range 26 {
			cookie, code := r.reply()
			if (code != errnoOK) != (cookie == 98) {
				t.Errorf("reply to %d is %v", cookie, code)
			}
			if cookie < 20 {
				r.receive(512)
			}
			seen[cookie] = true
		}
		m.mu.Lock()
		if len(seen) != 26 || len(m.batches) != 1 || len(m.batches[0]) != 25 || m.batches[0][24].Op != block.Flush {
			t.Errorf("%s: %d replies, %d batches", network, len(seen), len(m.batches))
		}
		m.mu.Unlock()
	}
}

// Requests in front of an incomplete payload are not kept back by it.
func TestIncompletePayloadHoldsNothingUp(t *testing.T) {
	m := newMemory(testSize)
	s := serve(t, "unix", Options{Opener: one(m)})
	for _, length := range []int{4096, 512 << 10} { // within the read buffer, and far beyond it
		r := s.enter(t, "vol")
		data := pattern(length, byte(length))
		r.send(append(requestBytes(cmdFlush, 0, 1, 0, 0), append(requestBytes(cmdWrite, 0, 2, 0, length), data[:700]...)...))
		r.want(1, errnoOK)
		r.send(data[700:])
		r.want(2, errnoOK)
		r.request(cmdRead, 0, 3, 0, length, nil)
		r.want(3, errnoOK)
		if !bytes.Equal(r.receive(length), data) {
			t.Error("the data differs")
		}
		// The same for a payload that is dropped.
		r.send(append(requestBytes(cmdFlush, 0, 4, 0, 0), requestBytes(cmdWrite, 0, 5, 3, 100000)...))
		r.want(4, errnoOK)
		r.send(make([]byte, 100000))
		r.want(5, errnoInval)
		r.Close()
	}
}

// TestFlushRule holds completions and shows, step by step, that a flush reaches the device after the completions
// of everything answered on either connection, and that its reply waits for the device.
func TestFlushRule(t *testing.T) {
	m := newMemory(testSize)
	m.hold = true
	s := serve(t, "unix", Options{Opener: one(m)})
	a, b := s.enter(t, "vol"), s.enter(t, "vol")
	data := pattern(512, 3)

	a.request(cmdWrite, 0, 1, 0, 512, data)
	write := m.next(t)
	// The write is not answered, so a flush on the other connection need not cover it, and does not wait for it.
	b.request(cmdFlush, 0, 2, 0, 0, nil)
	m.complete(m.next(t))
	b.want(2, errnoOK)
	if _, stable := m.content(); bytes.Equal(stable[:512], data) {
		t.Error("the model is wrong: a write in flight became stable")
	}
	m.complete(write)
	a.want(1, errnoOK)
	// Now it is answered: a flush on the other connection covers it.
	b.request(cmdFlush, 0, 3, 0, 0, nil)
	flush := m.next(t)
	// Until the device has flushed, the flush is not answered, though a later read is.
	b.request(cmdRead, 0, 4, 0, 512, nil)
	m.complete(m.next(t))
	b.want(4, errnoOK)
	b.receive(512)
	m.complete(flush)
	b.want(3, errnoOK)
	if _, stable := m.content(); !bytes.Equal(stable[:512], data) {
		t.Error("an answered write was not stable after the flush was answered")
	}
}

// The same with many connections and random completions: after a flush's reply, everything answered anywhere
// before the flush was sent is stable.
func TestFlushRuleUnderLoad(t *testing.T) {
	const writers, writes = 4, 60
	m := newMemory(testSize)
	m.hold = true
	s := serve(t, "unix", Options{Opener: one(m)})
	stop := make(chan struct{})
	var completing, writing sync.WaitGroup
	completing.Go(func() { // completes in random order, from another goroutine
		random := rand.New(rand.NewPCG(1, 2))
		var held []*block.Request
		for {
			select {
			case r := <-m.submitted:
				held = append(held, r)
			case <-stop:
				return
			default:
				if len(held) > 0 {
					i := random.IntN(len(held))
					m.complete(held[i])
					held[i] = held[len(held)-1]
					held = held[:len(held)-1]
				} else {
					select {
					case r := <-m.submitted:
						held = append(held, r)
					case <-stop:
						return
					}
				}
			}
		}
	})
	for w := range writers {
		writing.Go(func() {
			r, other := s.enter(t, "vol"), s.enter(t, "vol")
			for i := range writes {
				at, data := uint64(w*writes+i)*512, pattern(512, byte(1+w+i))
				r.request(cmdWrite, 0, 1, at, 512, data)
				r.want(1, errnoOK)
				other.request(cmdFlush, 0, 2, 0, 0, nil)
				other.want(2, errnoOK)
				m.mu.Lock()
				if !bytes.Equal(m.stable[at:at+512], data) {
					t.Errorf("writer %d: write %d was answered, flushed and is not stable", w, i)
				}
				m.mu.Unlock()
			}
		})
	}
	writing.Wait()
	close(stop)
	completing.Wait()
}

// A client that reads no replies and a device that completes nothing cannot make the server take more than its
// bounds; once there is room, the rest is served.
func TestMemoryBound(t *testing.T) {
	const length = 256 << 10
	tests := []struct {
		name     string
		requests int
		kind     command
		want     int // how many reach the device
	}{
		{"by requests", 8, cmdRead, 8},
		{"by bytes of reads", 10000, cmdRead, maxPayloadBytes / length},
		{"by bytes of writes", 10000, cmdWrite, maxPayloadBytes / length},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m := newMemory(testSize)
			m.hold = true
			s := serve(t, "unix", Options{Opener: one(m), MaxRequests: test.requests, MaxBytes: 1})
			r := s.enter(t, "vol")
			var sending sync.WaitGroup
			total := test.want + 5
			sending.Go(func() {
				for i := range total {
					var data []byte
					if test.kind == cmdWrite {
						data = make([]byte, length)
					}
					r.request(test.kind, 0, uint64(i), 0, length, data)
				}
			})
			eventually(t, "the session is full", func() bool { return s.Sessions()[0].Full })
			info := s.Sessions()[0]
			if len(m.submitted) != test.want || info.InFlight != test.want || info.InFlightBytes > maxPayloadBytes {
				t.Errorf("%d requests reached the device: %v", len(m.submitted), info)
			}
			for range total {
				m.complete(m.next(t))
				if _, code := r.reply(); code != errnoOK {
					t.Fatal(code)
				}
				if test.kind == cmdRead {
					r.receive(length)
				}
			}
			sending.Wait()
		})
	}
}

// However the connection ends, requests in flight are waited for, their memory is released, and only then the
// device is closed.
func TestDisconnectWithRequestsInFlight(t *testing.T) {
	ends := map[string]func(r raw){
		"disconnect": func(r raw) { r.request(cmdDisc, 0, 0, 0, 0, nil) },
		"closed":     func(r raw) { r.Close() },
		"garbage":    func(r raw) { r.send(bytes.Repeat([]byte{0xee}, requestSize)) },
		"mid-header": func(r raw) { r.send(make([]byte, 5)); r.Close() },
		"mid-payload": func(r raw) {
			r.send(append(requestBytes(cmdWrite, 0, 9, 0, 8192), 1, 2, 3))
			r.Close()
		},
		"endless payload": func(r raw) { r.send(requestBytes(cmdWrite, 0, 9, 0, maxDropBytes+512)) },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			m := newMemory(testSize)
			m.hold = true
			s := serve(t, "unix", Options{Opener: one(m)})
			r := s.enter(t, "vol")
			r.request(cmdWrite, 0, 1, 0, 512, pattern(512, 9))
			r.request(cmdRead, 0, 2, 0, 512, nil)
			write, read := m.next(t), m.next(t)
			payload := write.Data
			end(r)
			eventually(t, "the session drains", func() bool { return s.Sessions()[0].State == "draining" })
			if now, _ := m.counts(); now != 1 {
				t.Error("the device was closed with requests in flight")
			}
			m.complete(write)
			if now, _ := m.counts(); now != 1 {
				t.Error("the device was closed with a request in flight")
			}
			data := m.pool.Get(512)
			read.Data = data
			read.Done(read, nil)
			eventually(t, "the device is closed", func() bool { now, _ := m.counts(); return now == 0 })
			if !released(payload) || !released(data) {
				t.Error("a buffer was not released")
			}
			if name == "disconnect" { // the replies still come
				r.want(1, errnoOK)
				r.want(2, errnoOK)
				r.receive(512)
				r.ended()
			}
			if name == "garbage" {
				eventually(t, "the reason is logged", func() bool { return s.log.has("request magic is 0xeeeeeeee") })
			}
		})
	}
}

// Garbage ends its own session only.
func TestGarbageEndsOneSession(t *testing.T) {
	m := newMemory(testSize)
	s := serve(t, "tcp", Options{Opener: one(m)})
	good, bad := s.enter(t, "vol"), s.enter(t, "vol")
	bad.send(bytes.Repeat([]byte{1}, 100))
	bad.ended()
	good.request(cmdFlush, 0, 1, 0, 0, nil)
	good.want(1, errnoOK)
}

func TestRequestCoding(t *testing.T) {
	want := request{magic: magicRequest, flags: 3, kind: cmdTrim, cookie: 0x0102030405060708, offset: 1 << 40, length: 1 << 31}
	b := make([]byte, requestSize)
	encodeRequest(b, want)
	if got := decodeRequest(b); got != want || binary.BigEndian.Uint32(b) != 0x25609513 {
		t.Errorf("%+v becomes %+v", want, got)
	}
}
