package nbd

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"samovar/internal/block"
)

// player is a connection whose peer says fixed bytes and hears nothing.
type player struct {
	io.Reader
	heard bytes.Buffer
}

func (p *player) Write(b []byte) (int, error)    { return p.heard.Write(b) }
func (*player) Close() error                     { return nil }
func (*player) LocalAddr() net.Addr              { return nil }
func (*player) RemoteAddr() net.Addr             { return nil }
func (*player) SetDeadline(time.Time) error      { return nil }
func (*player) SetReadDeadline(time.Time) error  { return nil }
func (*player) SetWriteDeadline(time.Time) error { return nil }

// playSession runs a session on bytes and returns what the server said.
func playSession(t *testing.T, m *memory, client []byte) []byte {
	p := &player{Reader: bytes.NewReader(client)}
	s := newSession(t.Context(), Options{Opener: one(m)}.withDefaults(), 1, nil, p)
	s.run()
	if requests, held, _ := s.slots.load(); requests != 0 || held != 0 {
		t.Errorf("%d requests and %d bytes are left", requests, held)
	}
	if now, _ := m.counts(); now != 0 {
		t.Error("the device is still open")
	}
	return p.heard.Bytes()
}

func FuzzNegotiation(f *testing.F) {
	flags := []byte{0, 0, 0, 3}
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	f.Add(openingBytes("vol"))
	f.Add(openingBytes("nothing"))
	f.Add(join(flags, infoRequest(optInfo, "vol", []string{"1", "2", "3"}), infoRequest(optGo, "vol", nil)))
	f.Add(join(flags, infoRequest(optGo, "busy", nil), appendOption(nil, optList, 0), appendOption(nil, optAbort, 0)))
	f.Add(join(flags, appendOption(nil, 99, 3), []byte("abc"), appendOption(nil, optList, 20000), make([]byte, 20000)))
	f.Add(join(flags, appendOption(nil, optGo, 6), []byte{0xff, 0xff, 0xff, 0xff, 0, 0}))
	f.Add(join(flags, appendOption(nil, optGo, 0xffffffff)))
	f.Add([]byte{0, 0, 0, 9})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, client []byte) {
		said := playSession(t, newMemory(4096), client)
		if len(said) < 18 {
			t.Fatal("no greeting")
		}
		if len(client) < 4 || binary.BigEndian.Uint32(client) != 3 || bytes.Contains(client, []byte{0, 0, 0, 1}) {
			return // the old way in has a reply without a header
		}
		// Until the first entry, everything after the greeting is option replies, whatever was asked.
		for said = said[18:]; len(said) > 0; {
			if len(said) < replyHeaderSize || binary.BigEndian.Uint64(said) != magicOptionReply {
				t.Fatalf("not an option reply: %x", said)
			}
			kind, n := optionReply(binary.BigEndian.Uint32(said[12:])), binary.BigEndian.Uint32(said[16:])
			if uint64(n) > uint64(len(said)-replyHeaderSize) {
				t.Fatalf("a reply of %d bytes is cut", n)
			}
			if said = said[replyHeaderSize+n:]; kind == repAck && bytes.Contains(client, []byte("vol")) {
				return // may be the entry
			}
		}
	})
}

func FuzzTransmission(f *testing.F) {
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	f.Add(join(requestBytes(cmdRead, 0, 1, 0, 512), requestBytes(cmdFlush, 0, 2, 0, 0), requestBytes(cmdDisc, 0, 0, 0, 0)))
	f.Add(join(requestBytes(cmdWrite, cmdFlagFUA, 1, 512, 512), make([]byte, 512), requestBytes(cmdTrim, 0, 2, 0, 4096)))
	f.Add(join(requestBytes(cmdWrite, 0, 1, 1, 100), make([]byte, 100), requestBytes(cmdWriteZeroes, 2, 2, 0, 512)))
	f.Add(join(requestBytes(cmdWrite, 0, 1, 0, 4096), make([]byte, 100)))
	f.Add(requestBytes(cmdWrite, 0, 1, 0, 0xffffffff))
	f.Add(requestBytes(cmdRead, 0xffff, 1, 1<<63, 0xfffffe00))
	f.Add(requestBytes(777, 0, 1, 0, 512))
	f.Add(make([]byte, 28))
	f.Fuzz(func(t *testing.T, client []byte) {
		m := newMemory(8192)
		playSession(t, m, append(openingBytes("vol"), client...))
		for _, b := range m.batches {
			for _, r := range b {
				if r.Op != block.Flush && (r.Length == 0 || r.Offset%512 != 0 || r.Length%512 != 0 || r.Offset+r.Length > 8192) {
					t.Fatalf("the device got %+v", r)
				}
			}
		}
	})
}

// FuzzGreeting gives the client's negotiation and replies a server that says anything.
func FuzzGreeting(f *testing.F) {
	info := append([]byte{0, 0}, make([]byte, 10)...)
	info[8], info[10], info[11] = 16, 1, 0x6d
	good := append([]byte("NBDMAGICIHAVEOPT\x00\x03"), appendOptionReply(nil, optGo, repInfo, len(info))...)
	good = append(append(good, info...), appendOptionReply(nil, optGo, repAck, 0)...)
	f.Add(good)
	f.Add(append(bytes.Clone(good), 0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0))
	f.Add(append([]byte("NBDMAGICIHAVEOPT\x00\x03"), appendOptionReply(nil, optGo, repErrUnsup, 0)...))
	f.Add([]byte("NBDMAGICIHAVEOPT\x00\x03"))
	f.Fuzz(func(t *testing.T, server []byte) {
		p := &player{Reader: bytes.NewReader(server)}
		g := &greeting{op: "fuzz", conn: p, in: newIntake(p), release: func() bool { return true }}
		if g.flags() != nil {
			return
		}
		e, err := g.choose(optGo, "vol")
		if err != nil {
			return
		}
		c := newClient(Dialer{}, p, g.in, e)
		done := make(chan struct{})
		c.Submit([]*block.Request{{Op: block.Read, Length: 512, Done: func(r *block.Request, err error) {
			if err == nil {
				r.Data.Release()
			}
			close(done)
		}}})
		<-done
		c.Close()
	})
}
