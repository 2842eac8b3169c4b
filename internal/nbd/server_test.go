package nbd

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"samovar/internal/fault"
)

func TestShutdownFinishesWhatIsInFlight(t *testing.T) {
	m := newMemory(testSize)
	m.hold = true
	s := serve(t, "unix", Options{Opener: one(m)})
	r, idle, greeting := s.enter(t, "vol"), s.enter(t, "vol"), s.dial(t)
	greeting.receive(18)
	r.request(cmdFlush, 0, 1, 0, 0, nil)
	flush := m.next(t)
	ended := make(chan error, 1)
	go func() { ended <- s.Shutdown(t.Context()) }()
	idle.ended()
	greeting.ended()
	select {
	case err := <-ended:
		t.Errorf("shutdown did not wait: %v", err)
	default:
	}
	m.complete(flush)
	r.want(1, errnoOK)
	r.ended()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if now, ever := m.counts(); now != 0 || ever != 2 {
		t.Errorf("%d openings of %d left", now, ever)
	}
	if _, err := net.Dial(s.network, s.address); err == nil {
		t.Error("the server still listens")
	}
	if !s.log.has("the server shuts down") {
		t.Error("the reason is not logged")
	}
	if err := s.Serve(t.Context(), nilListener{}); !fault.Is(err, fault.Shutdown) {
		t.Errorf("Serve after Shutdown: %v", err)
	}
}

type nilListener struct{}

func (nilListener) Accept() (net.Conn, error) { return nil, net.ErrClosed }
func (nilListener) Close() error              { return nil }
func (nilListener) Addr() net.Addr            { return &net.UnixAddr{Name: "none"} }

func TestShutdownNamesSlowSessions(t *testing.T) {
	m := newMemory(testSize)
	m.hold = true
	s := serve(t, "unix", Options{Opener: one(m), ShutdownTimeout: time.Millisecond})
	r := s.enter(t, "vol")
	r.request(cmdRead, 0, 1, 0, 4096, nil)
	read := m.next(t)
	s.cuts.Store(true)
	err := s.Close()
	if !fault.Is(err, fault.Aborted) || !strings.Contains(err.Error(), `export "vol", draining, 1 requests (4096 bytes) in flight`) {
		t.Errorf("Close: %v", err)
	}
	// The connection is cut, but the opening is kept until the device is done.
	if now, _ := m.counts(); now != 1 {
		t.Error("the device was closed with a request in flight")
	}
	m.complete(read)
	eventually(t, "the device is closed", func() bool { now, _ := m.counts(); return now == 0 })
}

// The end of Serve's context does the same for that listener only.
func TestServeEndsItsOwnSessions(t *testing.T) {
	m := newMemory(testSize)
	s := serve(t, "unix", Options{Opener: one(m)})
	second, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, second) }()
	other := testServer{network: "tcp", address: second.Addr().String()}
	kept, dropped := s.enter(t, "vol"), other.enter(t, "vol")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	dropped.ended()
	kept.request(cmdFlush, 0, 1, 0, 0, nil)
	kept.want(1, errnoOK)
}

// An opening under way is cancelled by a shutdown.
func TestShutdownCancelsOpening(t *testing.T) {
	opener := newVolumes(nil)
	s := serve(t, "unix", Options{Opener: opener})
	r := s.dial(t)
	r.receive(18)
	r.send([]byte{0, 0, 0, 3})
	r.send(infoRequest(optGo, "blocked", nil))
	<-opener.blocked
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if b := r.receive(replyHeaderSize); b[12] != 0x80 {
		t.Errorf("reply %x, want an error", b)
	}
}

// A client that no longer reads cannot keep a session for ever once it ends.
func TestReplyTimeout(t *testing.T) {
	m := newMemory(8 << 20)
	s := serve(t, "unix", Options{Opener: one(m), ReplyTimeout: 20 * time.Millisecond})
	r := s.enter(t, "vol")
	for i := range 3 {
		r.request(cmdRead, 0, uint64(i), 0, 8<<20, nil)
	}
	r.request(cmdDisc, 0, 0, 0, 0, nil)
	eventually(t, "the session ends", func() bool { return len(s.Sessions()) == 0 })
	if now, ever := m.counts(); now != 0 || ever != 1 {
		t.Error("the device was not closed")
	}
}

func TestTooManySessions(t *testing.T) {
	m := newMemory(testSize)
	s := serve(t, "unix", Options{Opener: one(m), MaxSessions: 2})
	first, second := s.enter(t, "vol"), s.enter(t, "vol")
	s.dial(t).ended()
	first.Close()
	eventually(t, "there is room", func() bool { return len(s.Sessions()) == 1 })
	s.enter(t, "vol")
	second.request(cmdFlush, 0, 1, 0, 0, nil)
	second.want(1, errnoOK)
	infos := s.Sessions()
	if len(infos) != 2 || infos[0].ID != 2 || infos[0].State != "transmitting" || infos[0].Client == "" {
		t.Errorf("sessions: %v", infos)
	}
}
