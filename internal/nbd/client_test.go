package nbd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"samovar/internal/block"
	"samovar/internal/fault"
)

// do submits one request and waits for it.
func do(t testing.TB, d block.Device, r *block.Request) error {
	t.Helper()
	done := make(chan error, 1)
	r.Done = func(_ *block.Request, err error) { done <- err }
	d.Submit([]*block.Request{r})
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		t.Fatal("a request does not complete")
		return nil
	}
}

func write(t testing.TB, d block.Device, pool *block.Pool, offset uint64, data []byte, fua bool) error {
	t.Helper()
	b := pool.Get(len(data))
	copy(b.Bytes(), data)
	defer b.Release()
	return do(t, d, &block.Request{Op: block.Write, FUA: fua, Offset: offset, Length: uint64(len(data)), Data: b})
}

func read(t testing.TB, d block.Device, offset uint64, n int) ([]byte, error) {
	t.Helper()
	r := &block.Request{Op: block.Read, Offset: offset, Length: uint64(n)}
	err := do(t, d, r)
	if err != nil {
		if r.Data != nil {
			t.Error("a failed read has data")
		}
		return nil, err
	}
	data := bytes.Clone(r.Data.Bytes())
	r.Data.Release()
	return data, nil
}

func connect(t testing.TB, d Dialer, address, export string) *Client {
	t.Helper()
	c, err := d.Dial(t.Context(), address, export)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestClientAgainstServer(t *testing.T) {
	for _, network := range []string{"unix", "tcp"} {
		t.Run(network, func(t *testing.T) {
			m := newMemory(testSize)
			s := serve(t, network, Options{Opener: one(m)})
			pool := block.NewPool()
			c := connect(t, Dialer{Pool: pool}, s.uri("vol"), "")
			exercise(t, c, pool, testSize)
			if e := c.Export(); e.MinBlock != 512 || e.PreferredBlock != 4096 || e.MaxPayload != 32<<20 ||
				e.Name != "vol" || e.Description == "" || c.ReadOnly() || !e.Has(FlagCanMultiConn) {
				t.Errorf("export: %+v", e)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			if now, ever := m.counts(); now != 0 || ever != 1 {
				t.Error("Close returned before the server gave its opening back")
			}
			if data, stable := m.content(); !bytes.Equal(data, stable) {
				t.Error("the last flush did not cover everything")
			}
			if _, err := read(t, c, 0, 512); !fault.Is(err, fault.Shutdown) && !fault.Is(err, fault.Unavailable) {
				t.Errorf("a read after Close: %v", err)
			}
		})
	}
}

// exercise does random writes, trims and zeroes in batches of disjoint ranges, and compares with a model.
func exercise(t *testing.T, d block.Device, pool *block.Pool, size int) {
	random := rand.New(rand.NewPCG(7, 7))
	if d.Size() != uint64(size) {
		t.Fatalf("size %d, want %d", d.Size(), size)
	}
	model := make([]byte, size)
	for range 20 {
		var waiting sync.WaitGroup
		var batch []*block.Request
		for i := range 16 { // each in its own sixteenth
			n := 512 * (1 + random.IntN(size/16/512))
			at := i*size/16 + 512*random.IntN((size/16-n)/512+1)
			r := &block.Request{Op: block.Write, Offset: uint64(at), Length: uint64(n), FUA: random.IntN(4) == 0}
			switch random.IntN(6) {
			case 0:
				r.Op = block.Zero
				r.NoHole = random.IntN(2) == 0
				clear(model[at : at+n])
			default:
				r.Data = pool.Get(n)
				copy(r.Data.Bytes(), pattern(n, byte(random.Int())))
				copy(model[at:], r.Data.Bytes())
			}
			waiting.Add(1)
			r.Done = func(r *block.Request, err error) {
				if err != nil {
					t.Error(err)
				}
				r.Data.Release()
				waiting.Done()
			}
			batch = append(batch, r)
		}
		d.Submit(batch)
		waiting.Wait()
		data, err := read(t, d, 0, size)
		if err != nil || !bytes.Equal(data, model) {
			t.Fatalf("content differs, error %v", err)
		}
	}
	if err := do(t, d, &block.Request{Op: block.Flush}); err != nil {
		t.Error(err)
	}
	if err := do(t, d, &block.Request{Op: block.Trim, Length: uint64(size)}); err != nil {
		t.Error(err)
	}
	if err := do(t, d, &block.Request{Op: block.Flush}); err != nil {
		t.Error(err)
	}
}

// Requests longer than a payload may be go out in parts; one failing part fails the request.
func TestClientSplits(t *testing.T) {
	const size = 160 << 10
	m := newMemory(size)
	s := serve(t, "unix", Options{Opener: one(m)})
	pool := block.NewPool()
	c := connect(t, Dialer{Pool: pool, MaxRequests: 1}, s.uri("vol"), "vol") // one place: the parts wait for each other
	c.maxPayload = 64 << 10
	want := pattern(size, 5)
	if err := write(t, c, pool, 0, want, true); err != nil {
		t.Fatal(err)
	}
	got, err := read(t, c, 0, size)
	if _, stable := m.content(); err != nil || !bytes.Equal(got, want) || !bytes.Equal(stable, want) {
		t.Fatalf("content differs, error %v", err)
	}
	if n := len(m.seen()); n != 6 {
		t.Errorf("%d requests, want 6", n)
	}
	m.failWith(func(r *block.Request) error {
		if r.Offset == 0 {
			return fault.New(fault.NoSpace, "test", "")
		}
		return nil
	})
	if err := write(t, c, pool, 0, want, false); !fault.Is(err, fault.NoSpace) {
		t.Errorf("write: %v", err)
	}
	if _, err := read(t, c, 0, size); !fault.Is(err, fault.NoSpace) {
		t.Errorf("read: %v", err)
	}
}

func TestClientErrors(t *testing.T) {
	m, ro := newMemory(testSize), newMemory(testSize)
	ro.readOnly = true
	s := serve(t, "unix", Options{Opener: newVolumes(map[string]*memory{"vol": m, "ro": ro})})
	pool := block.NewPool()
	c, readOnly := connect(t, Dialer{}, s.uri("vol"), ""), connect(t, Dialer{}, s.uri(""), "ro")
	if !readOnly.ReadOnly() {
		t.Error("the export is not read-only")
	}
	short := pool.Get(512)
	tests := []struct {
		name    string
		request block.Request
		device  *Client
		want    fault.Kind
	}{
		{"read beyond the end", block.Request{Op: block.Read, Offset: testSize, Length: 512}, c, fault.Invalid},
		{"overflow", block.Request{Op: block.Read, Offset: 1<<64 - 512, Length: 1024}, c, fault.Invalid},
		{"nothing", block.Request{Op: block.Trim}, c, fault.Invalid},
		{"unaligned", block.Request{Op: block.Read, Offset: 1, Length: 512}, c, fault.Invalid}, // by the server
		{"unknown", block.Request{Op: 99, Length: 512}, c, fault.Invalid},
		{"write without data", block.Request{Op: block.Write, Length: 512}, c, fault.Invalid},
		{"write of another length", block.Request{Op: block.Write, Length: 1024, Data: short}, c, fault.Invalid},
		{"write read-only", block.Request{Op: block.Write, Length: 512, Data: short}, readOnly, fault.Permission},
		{"trim read-only", block.Request{Op: block.Trim, Length: 512}, readOnly, fault.Permission},
	}
	for _, test := range tests {
		if err := do(t, test.device, &test.request); !fault.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
	}
	for code, want := range map[errno]fault.Kind{errnoPerm: fault.Permission, errnoIO: fault.IO, errnoNoMem: fault.Unavailable,
		errnoInval: fault.Invalid, errnoNoSpace: fault.NoSpace, errnoOverflow: fault.Invalid, errnoNotSup: fault.Invalid,
		errnoShutdown: fault.Shutdown, 12345: fault.IO} {
		if got := kindOf(code); got != want {
			t.Errorf("%v becomes %v, want %v", code, got, want)
		}
	}
}

func TestClientRefusedByServer(t *testing.T) {
	s := serve(t, "tcp", Options{Opener: one(newMemory(testSize))})
	for export, want := range map[string]fault.Kind{"busy": fault.Permission, "nothing": fault.NotFound, "ending": fault.Shutdown} {
		_, err := Dial(t.Context(), s.uri(export), "")
		_, infoErr := Info(t.Context(), s.uri(""), export)
		if !fault.Is(err, want) || !fault.Is(infoErr, want) {
			t.Errorf("%s: %v and %v, want %v", export, err, infoErr, want)
		}
		if export == "busy" && !strings.Contains(err.Error(), "attached on node b") {
			t.Errorf("the holder is not named: %v", err)
		}
	}
	names, err := List(t.Context(), s.address)
	if err != nil || len(names) != 1 || names[0] != "vol" {
		t.Errorf("List: %v, %v", names, err)
	}
	e, err := Info(t.Context(), s.address, "vol")
	if err != nil || e.Size != testSize || !e.Has(FlagSendFlush|FlagSendFUA|FlagSendTrim|FlagSendWriteZeroes) {
		t.Errorf("Info: %+v, %v", e, err)
	}
	if _, err := Dial(t.Context(), "unix:/nonexistent", "x"); !fault.Is(err, fault.Unavailable) {
		t.Errorf("no server: %v", err)
	}
	if _, err := Dial(t.Context(), "nbd://h/a", "b"); !fault.Is(err, fault.Invalid) {
		t.Errorf("two names: %v", err)
	}
}

// script is a server that plays a fixed role for the client.
func script(t *testing.T, role func(conn net.Conn)) string {
	t.Helper()
	noLeaks(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conn.SetDeadline(time.Now().Add(patience))
			role(conn)
			conn.Close()
		}
	})
	t.Cleanup(func() { listener.Close(); serving.Wait() })
	return listener.Addr().String()
}

// oldServer answers every option but EXPORT_NAME with UNSUP, and announces only flags.
func oldServer(conn net.Conn, handshakeFlags byte, flags uint16, then func()) {
	conn.Write([]byte("NBDMAGICIHAVEOPT\x00" + string([]byte{handshakeFlags})))
	io.CopyN(io.Discard, conn, 4)
	for {
		b := make([]byte, optionHeaderSize)
		if _, err := io.ReadFull(conn, b); err != nil {
			return
		}
		io.CopyN(io.Discard, conn, int64(b[15]))
		if option(b[11]) != optExportName {
			conn.Write(appendOptionReply(nil, option(b[11]), repErrUnsup, 0))
			continue
		}
		reply := []byte{0, 0, 0, 0, 0, 16, 0, 0, byte(flags >> 8), byte(flags)}
		if handshakeFlags&flagNoZeroes == 0 {
			reply = append(reply, make([]byte, 124)...)
		}
		conn.Write(reply)
		then()
		return
	}
}

// With a server that announced nothing, the client falls back to the old way in and refuses what it cannot have.
func TestClientAgainstPoorServer(t *testing.T) {
	for _, handshakeFlags := range []byte{0, flagFixedNewstyle, flagFixedNewstyle | flagNoZeroes} {
		address := script(t, func(conn net.Conn) {
			oldServer(conn, handshakeFlags, FlagHasFlags, func() { io.CopyN(io.Discard, conn, requestSize) }) // DISC
		})
		c := connect(t, Dialer{}, address, "x")
		if c.Size() != 1<<20 {
			t.Errorf("size %d", c.Size())
		}
		data := block.NewPool().Get(512)
		for want, r := range map[string]*block.Request{
			"flush":        {Op: block.Flush},
			"trim":         {Op: block.Trim, Length: 512},
			"write zeroes": {Op: block.Zero, Length: 512},
			"FUA":          {Op: block.Write, FUA: true, Length: 512, Data: data},
		} {
			err := do(t, c, r)
			if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "does not support "+want) {
				t.Errorf("%s: %v", want, err)
			}
		}
		c.Close()
		if _, err := Info(t.Context(), address, "x"); !fault.Is(err, fault.Invalid) {
			t.Errorf("Info: %v", err)
		}
	}
}

// A lost connection completes everything: what is in flight, what waits for room, what comes later.
func TestClientConnectionLost(t *testing.T) {
	const inFlight = 8
	replies := map[string][]byte{
		"closed":         nil,
		"bad magic":      make([]byte, replySize),
		"unknown cookie": {0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9},
		"half a read":    {0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 2, 3},
	}
	for name, reply := range replies {
		t.Run(name, func(t *testing.T) {
			address := script(t, func(conn net.Conn) {
				oldServer(conn, flagFixedNewstyle|flagNoZeroes, FlagHasFlags, func() {
					io.CopyN(io.Discard, conn, inFlight*requestSize)
					conn.Write(reply)
				})
			})
			c := connect(t, Dialer{MaxRequests: inFlight}, address, "x")
			outcomes := make(chan error, inFlight+3)
			var batch []*block.Request
			for range inFlight + 3 { // the last three find no room
				batch = append(batch, &block.Request{Op: block.Read, Length: 512,
					Done: func(_ *block.Request, err error) { outcomes <- err }})
			}
			c.Submit(batch)
			for range batch {
				if err := <-outcomes; !fault.Is(err, fault.Unavailable) {
					t.Errorf("in flight: %v", err)
				}
			}
			if _, err := read(t, c, 0, 512); !fault.Is(err, fault.Unavailable) {
				t.Errorf("later: %v", err)
			}
		})
	}
}

// Close with a server that never answers ends at its deadline.
func TestClientCloseTimeout(t *testing.T) {
	address := script(t, func(conn net.Conn) {
		oldServer(conn, flagFixedNewstyle|flagNoZeroes, FlagHasFlags, func() { io.Copy(io.Discard, conn) })
	})
	c := connect(t, Dialer{CloseTimeout: 20 * time.Millisecond}, address, "x")
	outcome := make(chan error, 1)
	c.Submit([]*block.Request{{Op: block.Read, Length: 512, Done: func(_ *block.Request, err error) { outcome <- err }}})
	c.Close()
	if err := <-outcome; !fault.Is(err, fault.Unavailable) {
		t.Error(err)
	}
}

// Servers that talk nonsense while negotiating.
func TestClientNegotiationErrors(t *testing.T) {
	greeting := "NBDMAGICIHAVEOPT\x00\x03"
	answer := func(kind optionReply, data string) string {
		return greeting + string(appendOptionReply(nil, optGo, kind, len(data))) + data
	}
	export := string(make([]byte, 12))
	for what, want := range map[string]fault.Kind{
		"": fault.Unavailable, "NBDMAGIC": fault.Unavailable, "SSH-2.0-OpenSSH_9.2p1": fault.Corrupt,
		"NBDMAGIC\x00\x00\x42\x02\x81\x86\x12\x53\x00\x00": fault.Invalid, "NBDMAGICIHAVEOPX\x00\x03": fault.Corrupt,
		greeting: fault.Unavailable, greeting + strings.Repeat("x", 20): fault.Corrupt,
		answer(repAck, ""): fault.Corrupt, answer(repInfo, "\x00"): fault.Corrupt,
		answer(repInfo, export+"x"): fault.Corrupt, answer(repInfo, "\x00\x03xx"): fault.Corrupt,
		answer(repErrTLSReqd, ""): fault.Permission, answer(repError+77, "new"): fault.IO,
		greeting + string(appendOptionReply(nil, optGo, repInfo, 1<<30)): fault.Corrupt,
	} {
		address := script(t, func(conn net.Conn) {
			io.WriteString(conn, what)
			if len(what) >= 18 {
				io.CopyN(io.Discard, conn, 30)
			}
			conn.(*net.TCPConn).CloseWrite()
			io.Copy(io.Discard, conn)
		})
		if _, err := Dial(t.Context(), address, "x"); !fault.Is(err, want) {
			t.Errorf("%q: %v, want %v", what, err, want)
		}
	}
}

// The context ends a negotiation with a silent server.
func TestDialContext(t *testing.T) {
	address := script(t, func(conn net.Conn) { io.Copy(io.Discard, conn) })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := Dial(ctx, address, "x"); !fault.Is(err, fault.Unavailable) || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

func TestParseAddress(t *testing.T) {
	for text, want := range map[string]struct{ network, address, export string }{
		"nbd://host:1/vol":                   {"tcp", "host:1", "vol"},
		"nbd://host/a/b%20c":                 {"tcp", "host:10809", "a/b c"},
		"nbd://[::1]:5":                      {"tcp", "[::1]:5", ""},
		"nbd+unix:///vol?socket=/run/s.sock": {"unix", "/run/s.sock", "vol"},
		"nbd+unix:///?socket=s":              {"unix", "s", ""},
		"unix:s":                             {"unix", "s", ""},
		"/run/s":                             {"unix", "/run/s", ""},
		"host:7":                             {"tcp", "host:7", ""},
		"host":                               {},
		"":                                   {},
		"nbd:///vol":                         {},
		"nbds://host/vol":                    {},
		"nbd+unix:///vol":                    {},
		"nbd+unix://host/vol?socket=s":       {},
		"http://host/":                       {},
		"nbd://host:bad/":                    {},
	} {
		address, export, err := ParseAddress(text)
		if address.Network != want.network || address.Address != want.address || export != want.export ||
			(err != nil) != (want.network == "") || (err != nil && !fault.Is(err, fault.Invalid)) {
			t.Errorf("%q: %v %q %v", text, address, export, err)
		}
	}
}

// Our client with a server that is not ours.
func TestClientAgainstNbdkit(t *testing.T) {
	need(t, "nbdkit", "nbdkit")
	noLeaks(t)
	dir, err := os.MkdirTemp("", "nbd")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := dir + "/k"
	cmd := exec.Command("nbdkit", "-f", "-U", socket, "memory", "4M")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	eventually(t, "nbdkit listens", func() bool {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	pool := block.NewPool()
	c := connect(t, Dialer{Pool: pool}, socket, "")
	defer c.Close()
	exercise(t, c, pool, 4<<20)
	if names, err := List(t.Context(), socket); err != nil || len(names) != 1 || names[0] != "" {
		t.Errorf("List: %q, %v", names, err)
	}
}
