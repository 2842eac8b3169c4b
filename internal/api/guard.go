package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"samovar/internal/api/problem"
	"samovar/internal/fault"
)

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	request := &running{what: r.Method + " " + clip(r.URL.Path), since: time.Now()}
	s.enter(request)
	defer s.leave(request)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	// A page of another site, open in the browser of somebody who reaches this port, must not act here.
	if err := s.origin.Check(r); err != nil {
		s.guard(w, r, func(http.ResponseWriter, *http.Request) error {
			return fault.New(fault.Permission, request.what, "a web page of another site asks")
		})
		return
	}
	s.mux.ServeHTTP(w, r)
}

// serve puts a route's checks and deadline around its handler.
func (s *Server) serve(rt route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.guard(w, r, func(w http.ResponseWriter, r *http.Request) error {
			op := r.Method + " " + clip(r.URL.Path)
			if s.closed.Err() != nil {
				return s.ending(op)
			}
			if err := parameters(r, op, rt.query); err != nil {
				return err
			}
			if rt.stream {
				ctx, cancel := context.WithCancel(r.Context())
				defer cancel()
				defer context.AfterFunc(s.closed, cancel)()
				return rt.handle(s, w, r.WithContext(ctx))
			}
			ctx, cancel := context.WithTimeout(r.Context(), s.options.Timeout)
			defer cancel()
			err := rt.handle(s, w, r.WithContext(ctx))
			if _, explained := errors.AsType[*fault.Error](err); !explained && errors.Is(err, context.DeadlineExceeded) {
				return fault.New(fault.Aborted, op, fmt.Sprintf("the node gave up after %v; it may still happen", s.options.Timeout))
			}
			return err
		})
	})
}

func (s *Server) ending(op string) error {
	return fault.New(fault.Shutdown, op, "the node is shutting down; ask another one")
}

// parameters refuses query parameters that the route does not know, and repeated ones.
func parameters(r *http.Request, op string, known []string) error {
	if r.URL.RawQuery == "" {
		return nil
	}
	for name, values := range r.URL.Query() {
		switch {
		case !slices.Contains(known, name) && len(known) == 0:
			return fault.New(fault.Invalid, op, fmt.Sprintf("unknown parameter %q; this call has none", clip(name)))
		case !slices.Contains(known, name):
			return fault.New(fault.Invalid, op, fmt.Sprintf("unknown parameter %q; this call knows %s", clip(name), strings.Join(known, ", ")))
		case len(values) > 1:
			return fault.New(fault.Invalid, op, fmt.Sprintf("parameter %q is given twice", name))
		}
	}
	return nil
}

// guard runs a handler, makes a problem of its error or panic, and logs the request.
func (s *Server) guard(w http.ResponseWriter, r *http.Request, handle func(http.ResponseWriter, *http.Request) error) {
	began := time.Now()
	recorder := &recorder{ResponseWriter: w}
	err := func() (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = s.panicked(r.Method+" "+clip(r.URL.Path), p)
			}
		}()
		return handle(recorder, r)
	}()
	if err != nil {
		s.fail(recorder, err)
	}
	attributes := []any{"method", r.Method, "path", clip(r.URL.Path), "status", recorder.status,
		"bytes", recorder.bytes, "took", time.Since(began), "from", r.RemoteAddr}
	if err != nil {
		attributes = append(attributes, "error", err)
	}
	s.log.Log(r.Context(), level(err), "request", attributes...)
	if err != nil && recorder.cut {
		panic(http.ErrAbortHandler) // part of an answer went out: the connection ends, so that nobody takes it for whole
	}
}

// level makes our own bugs visible; everything else is a matter of the one who asked.
func level(err error) slog.Level {
	if problem.KindOf(err) == fault.Internal {
		return slog.LevelError
	}
	return slog.LevelDebug
}

func (s *Server) panicked(op string, p any) error {
	if p == http.ErrAbortHandler {
		panic(p)
	}
	s.log.Error("a request panicked", "request", op, "panic", p, "stack", string(debug.Stack()))
	return fault.New(fault.Internal, op, "a bug in samovar: the node's log has the details")
}

// fail answers with a problem, unless an answer has begun.
func (s *Server) fail(w *recorder, err error) {
	if w.status != 0 {
		w.cut = true
		return
	}
	body, status := problem.Of(err)
	if own, ok := errors.AsType[refusal](err); ok {
		status = own.status
		body, _ = problem.Of(own.error)
	}
	if answerErr := s.answer(w, status, body); answerErr != nil {
		s.log.Error("an error could not be sent", "error", answerErr)
	}
}

// recorder notes what was answered.
type recorder struct {
	http.ResponseWriter
	status int
	bytes  int64
	cut    bool
}

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController find the connection.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }
