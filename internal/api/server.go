package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"samovar/internal/fault"
)

// Options adjust a server. The zero value is fit for use.
type Options struct {
	Logger *slog.Logger // nil: silent
	// Timeout bounds every request that is no stream, in the backend. 0: 2 minutes.
	Timeout time.Duration
	// BodyTimeout bounds the reading of a request's body, and the sending of one event. 0: 20 seconds.
	BodyTimeout time.Duration
	// KeepAlive is the pause after which a silent stream sends a comment. 0: 15 seconds.
	KeepAlive time.Duration
	// Grace is how long Serve waits for requests when it ends. 0: 10 seconds.
	Grace time.Duration
	// Authorize, if set, refuses calls under /v1/internal/ by an error, normally of kind fault.Permission.
	Authorize func(*http.Request) error
}

// Server answers the API's requests. It is an http.Handler; Serve runs it on a listener.
type Server struct {
	backend Backend
	options Options
	log     *slog.Logger
	mux     *http.ServeMux
	origin  *http.CrossOriginProtection
	closed  context.Context // ends with Close, and every stream with it
	close   context.CancelFunc

	mu      sync.Mutex
	running map[*running]struct{} // requests being answered
}

// running is a request being answered.
type running struct {
	what  string
	since time.Time
}

// NewServer makes a server for backend.
func NewServer(backend Backend, options Options) *Server {
	options.Timeout = cmp.Or(options.Timeout, 2*time.Minute)
	options.BodyTimeout = cmp.Or(options.BodyTimeout, 20*time.Second)
	options.KeepAlive = cmp.Or(options.KeepAlive, 15*time.Second)
	options.Grace = cmp.Or(options.Grace, 10*time.Second)
	s := &Server{backend: backend, options: options, log: options.Logger, mux: http.NewServeMux(),
		origin: http.NewCrossOriginProtection(), running: map[*running]struct{}{}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.closed, s.close = context.WithCancel(context.Background())
	for _, r := range routes() {
		s.mux.Handle(r.method+" "+r.path, s.serve(r))
	}
	s.mux.HandleFunc("/", s.unknown)
	return s
}

// Close ends every stream and refuses further requests with fault.Shutdown. Requests being answered go on; the
// http.Server waits for them. It may be called more than once.
func (s *Server) Close() { s.close() }

// Serve answers requests on l until ctx ends; then it closes the streams, waits for what is being answered, at
// most Options.Grace, and returns an error that names what was too slow.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	defer s.Close()
	hs := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	failed := make(chan error, 1)
	go func() { failed <- hs.Serve(l) }()
	op := "serve the API on " + l.Addr().String()
	select {
	case err := <-failed:
		return fault.Wrap(fault.IO, op, err)
	case <-ctx.Done():
	}
	s.Close()
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.options.Grace)
	defer cancel()
	err := hs.Shutdown(grace)
	slow := s.slow()
	if err != nil {
		err = errors.Join(err, hs.Close())
	}
	<-failed
	if err != nil {
		return fault.New(fault.Aborted, op, fmt.Sprintf("gave up after %v waiting for: %s", s.options.Grace, strings.Join(slow, ", ")))
	}
	return nil
}

func (s *Server) enter(r *running) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[r] = struct{}{}
}

func (s *Server) leave(r *running) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.running, r)
}

// slow names the requests being answered, the oldest first.
func (s *Server) slow() []string {
	s.mu.Lock()
	var all []*running
	for r := range s.running {
		all = append(all, r)
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b *running) int { return a.since.Compare(b.since) })
	names := make([]string, len(all))
	for i, r := range all {
		names[i] = r.what
	}
	return names
}
