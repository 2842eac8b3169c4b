package nbd

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"samovar/internal/block"
)

// patience is how long a test waits for something that must happen.
const patience = 20 * time.Second

func sortedNames(devices map[string]*memory) []string {
	return slices.Sorted(maps.Keys(devices))
}

// eventually polls until ok; for states that nothing announces.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited too long until %s", what)
		}
	}
}

// noLeaks fails the test if goroutines outlive it.
func noLeaks(t testing.TB) {
	t.Helper()
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		for deadline := time.Now().Add(patience); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				stacks := make([]byte, 1<<20)
				t.Errorf("%d goroutines before, %d after:\n%s", before, runtime.NumGoroutine(),
					stacks[:runtime.Stack(stacks, true)])
				return
			}
		}
	})
}

// logBuffer collects what the server logged.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logBuffer) has(part string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), part)
}

// testServer is a server on a socket, ended with the test.
type testServer struct {
	*Server
	network, address string
	log              *logBuffer
	cuts             atomic.Bool // the test cuts sessions off: Serve says so as well
}

func serve(t testing.TB, network string, options Options) *testServer {
	t.Helper()
	noLeaks(t)
	address := "127.0.0.1:0"
	if network == "unix" {
		dir, err := os.MkdirTemp("", "nbd") // t.TempDir is too long for a socket's name
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		address = filepath.Join(dir, "s")
	}
	listener, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	s := &testServer{network: network, address: listener.Addr().String(), log: &logBuffer{}}
	options.Logger = slog.New(slog.NewTextHandler(s.log, nil))
	s.Server = NewServer(options)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil && !s.cuts.Load() {
				t.Errorf("Serve: %v", err)
			}
		case <-time.After(patience):
			t.Error("Serve does not return")
		}
	})
	return s
}

// uri is the address of an export as external tools take it.
func (s *testServer) uri(export string) string {
	if s.network == "unix" {
		return "nbd+unix:///" + export + "?socket=" + s.address
	}
	return "nbd://" + s.address + "/" + export
}

// raw is a client that sends exactly what the test says.
type raw struct {
	net.Conn
	t testing.TB
}

func (s *testServer) dial(t testing.TB) raw {
	t.Helper()
	conn, err := net.Dial(s.network, s.address)
	if err != nil {
		t.Fatal(err)
	}
	conn.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() { conn.Close() })
	return raw{conn, t}
}

func (r raw) send(b []byte) {
	r.t.Helper()
	if _, err := r.Write(b); err != nil {
		r.t.Fatal(err)
	}
}

func (r raw) receive(n int) []byte {
	r.t.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		r.t.Fatalf("reading %d bytes: %v", n, err)
	}
	return b
}

// ended waits for the server to close the connection.
func (r raw) ended() {
	r.t.Helper()
	if n, err := io.Copy(io.Discard, r); n > 0 || (err != nil && !strings.Contains(err.Error(), "reset")) {
		r.t.Fatalf("%d more bytes, error %v, want the end of the stream", n, err)
	}
}

// opening is a negotiation that enters an export by its name.
func openingBytes(export string) []byte {
	b := binary.BigEndian.AppendUint32(nil, flagFixedNewstyle|flagNoZeroes)
	return append(appendOption(b, optExportName, len(export)), export...)
}

// enter negotiates.
func (s *testServer) enter(t testing.TB, export string) raw {
	t.Helper()
	r := s.dial(t)
	r.send(openingBytes(export))
	r.receive(18 + 10)
	return r
}

func requestBytes(kind command, flags uint16, cookie, offset uint64, length int) []byte {
	b := make([]byte, requestSize)
	encodeRequest(b, request{kind: kind, flags: flags, cookie: cookie, offset: offset, length: uint32(length)})
	return b
}

func (r raw) request(kind command, flags uint16, cookie, offset uint64, length int, data []byte) {
	r.t.Helper()
	r.send(append(requestBytes(kind, flags, cookie, offset, length), data...))
}

// reply reads one reply header.
func (r raw) reply() (cookie uint64, code errno) {
	r.t.Helper()
	b := r.receive(replySize)
	if magic := binary.BigEndian.Uint32(b); magic != magicReply {
		r.t.Fatalf("reply magic %#x", magic)
	}
	return binary.BigEndian.Uint64(b[8:]), errno(binary.BigEndian.Uint32(b[4:]))
}

// want reads a reply and checks it.
func (r raw) want(cookie uint64, code errno) {
	r.t.Helper()
	if gotCookie, got := r.reply(); got != code || gotCookie != cookie {
		r.t.Fatalf("reply to %d is %v, want %v to %d", gotCookie, got, code, cookie)
	}
}

// released tells whether nobody holds a buffer any more. Only for buffers whose pool has no other user.
func released(b *block.Buffer) (yes bool) {
	defer func() { yes = recover() != nil }()
	b.Retain()
	b.Release()
	return false
}

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i/512)*7 + byte(i) + seed
	}
	return b
}
