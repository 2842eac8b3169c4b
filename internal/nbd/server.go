package nbd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"samovar/internal/fault"
)

// Server serves the devices of an opener on any number of listeners.
type Server struct {
	options Options

	mu        sync.Mutex // guards the following
	listeners map[net.Listener]struct{}
	sessions  map[*session]struct{}
	lastID    uint64
	closing   bool
}

// NewServer makes a server. It panics if options has no Opener.
func NewServer(options Options) *Server {
	return &Server{
		options:   options.withDefaults(),
		listeners: make(map[net.Listener]struct{}),
		sessions:  make(map[*session]struct{}),
	}
}

// Serve accepts connections until ctx ends, the server is shut down or the listener fails. It closes the
// listener, lets its sessions finish what is in flight, and returns once they have ended; sessions that take
// longer than ShutdownTimeout are cut off and named in the error.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		listener.Close()
		return fault.New(fault.Shutdown, "nbd: serve "+listener.Addr().String(), "the server was shut down")
	}
	s.listeners[listener] = struct{}{}
	s.mu.Unlock()
	unwatch := context.AfterFunc(ctx, func() { listener.Close() })
	defer unwatch()

	err := s.acceptAll(ctx, listener)
	listener.Close()
	s.mu.Lock()
	delete(s.listeners, listener)
	own := s.sessionsLocked(func(x *session) bool { return x.listener == listener })
	s.mu.Unlock()

	deadline, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.options.ShutdownTimeout)
	defer cancel()
	return errors.Join(err, drain(deadline, own))
}

func (s *Server) acceptAll(ctx context.Context, listener net.Listener) error {
	pause := time.Duration(0)
	for {
		conn, err := listener.Accept()
		if err == nil {
			pause = 0
			s.start(ctx, listener, conn)
			continue
		}
		if ctx.Err() != nil || s.isClosing() {
			return nil
		}
		if !passes(err) {
			return fault.Wrap(fault.Unavailable, "nbd: accept on "+listener.Addr().String(), err)
		}
		// Out of descriptors or memory: sessions that end will give some back.
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		s.options.Logger.Warn("nbd: accept failed, trying again", "listener", listener.Addr().String(), "error", err)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// passes tells whether an accept error goes away by itself.
func passes(err error) bool {
	for _, e := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM,
		syscall.ECONNABORTED, syscall.EINTR} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (s *Server) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}

// start runs a session for conn in its own goroutine, unless there are too many.
func (s *Server) start(ctx context.Context, listener net.Listener, conn net.Conn) {
	s.mu.Lock()
	if s.closing || len(s.sessions) >= s.options.MaxSessions {
		full := !s.closing
		s.mu.Unlock()
		conn.Close()
		if full {
			s.options.Logger.Warn("nbd: connection refused: too many sessions",
				"client", clientName(conn), "limit", s.options.MaxSessions)
		}
		return
	}
	s.lastID++
	x := newSession(context.WithoutCancel(ctx), s.options, s.lastID, listener, conn)
	s.sessions[x] = struct{}{}
	s.mu.Unlock()
	go func() {
		defer close(x.done)
		x.run()
		s.mu.Lock()
		delete(s.sessions, x)
		s.mu.Unlock()
	}()
}

// Shutdown stops listening and reading requests, lets every session finish what is in flight, and waits. When
// ctx ends first, the remaining connections are cut and the error names their sessions; their openings are
// given back as soon as the devices complete what they have.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.closing = true
	for listener := range s.listeners {
		listener.Close()
	}
	all := s.sessionsLocked(func(*session) bool { return true })
	s.mu.Unlock()
	return drain(ctx, all)
}

// Close is Shutdown within ShutdownTimeout.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), s.options.ShutdownTimeout)
	defer cancel()
	return s.Shutdown(ctx)
}

func (s *Server) sessionsLocked(match func(*session) bool) []*session {
	var found []*session
	for x := range s.sessions {
		if match(x) {
			found = append(found, x)
		}
	}
	slices.SortFunc(found, func(a, b *session) int { return cmp.Compare(a.id, b.id) })
	return found
}

// drain ends sessions and waits for them until ctx ends.
func drain(ctx context.Context, sessions []*session) error {
	for _, x := range sessions {
		x.stop()
	}
	var slow []string
	for _, x := range sessions {
		select {
		case <-x.done:
			continue
		default:
		}
		select {
		case <-x.done:
		case <-ctx.Done():
			slow = append(slow, x.info().String())
			x.conn.Close()
		}
	}
	if len(slow) == 0 {
		return nil
	}
	return fault.New(fault.Aborted, "nbd: shut down", "cut off at the deadline: "+strings.Join(slow, "; "))
}

// SessionInfo describes a session for status pages and messages.
type SessionInfo struct {
	ID            uint64
	Client        string // address, or the socket's path
	Export        string // empty while negotiating
	State         string // negotiating, transmitting, draining
	Since         time.Time
	InFlight      int
	InFlightBytes int64
	Full          bool // reading waits for requests in flight
}

// String is one phrase for an error message.
func (i SessionInfo) String() string {
	return fmt.Sprintf("session %d of %s, export %q, %s, %d requests (%d bytes) in flight",
		i.ID, i.Client, i.Export, i.State, i.InFlight, i.InFlightBytes)
}

// Sessions lists the sessions, oldest first.
func (s *Server) Sessions() []SessionInfo {
	s.mu.Lock()
	all := s.sessionsLocked(func(*session) bool { return true })
	s.mu.Unlock()
	infos := make([]SessionInfo, len(all))
	for i, x := range all {
		infos[i] = x.info()
	}
	return infos
}

// clientName is the peer's address; a unix socket's peer has none, so its path stands for it.
func clientName(conn net.Conn) string {
	if remote := conn.RemoteAddr(); remote != nil && remote.String() != "" && remote.String() != "@" {
		return remote.String()
	}
	if local := conn.LocalAddr(); local != nil {
		return "unix:" + local.String()
	}
	return "unknown"
}
