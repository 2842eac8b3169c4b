package link

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/wire"
)

// Router finds who receives a session for a replica on this node.
type Router interface {
	Open(first replication.Message, l Link) (Receiver, error)
}

// Serve accepts sessions until ctx ends, then closes them and waits for them.
func Serve(ctx context.Context, ln net.Listener, o Options, router Router, log *slog.Logger) error {
	s := &server{o: o, router: router, log: log, open: map[net.Conn]bool{}}
	stop := context.AfterFunc(ctx, func() {
		ln.Close() // Accept tells
		s.closeAll()
	})
	defer stop()
	defer s.sessions.Wait()
	for pause := time.Millisecond; ; {
		nc, err := ln.Accept()
		if err == nil {
			pause = time.Millisecond
			s.start(nc)
			continue
		}
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return fault.Wrap(fault.Unavailable, "accept sessions at "+ln.Addr().String(), err)
		}
		// Out of descriptors or the like: those who are connected go on.
		log.Warn("cannot accept a session", "address", ln.Addr().String(), "error", err)
		time.Sleep(pause)
		pause = min(2*pause, time.Second)
	}
}

type server struct {
	o        Options
	router   Router
	log      *slog.Logger
	sessions sync.WaitGroup

	mu     sync.Mutex // guards what follows
	open   map[net.Conn]bool
	closed bool
}

func (s *server) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for nc := range s.open {
		nc.Close() // its goroutines tell
	}
}

func (s *server) start(nc net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		nc.Close()
		return
	}
	s.open[nc] = true
	s.sessions.Go(func() {
		if err := s.serve(nc); err != nil {
			s.log.Warn("session refused", "peer", nc.RemoteAddr().String(), "error", err)
		}
		nc.Close() // an error says only that it is closed already
		s.mu.Lock()
		delete(s.open, nc)
		s.mu.Unlock()
	})
}

// serve runs one session until it ends.
func (s *server) serve(nc net.Conn) error {
	deadline := time.Now().Add(s.o.Handshake)
	session, err := shake(nc, s.o, wire.Replica, deadline)
	if err != nil {
		return err
	}
	if err := nc.SetReadDeadline(deadline); err != nil {
		return fault.Wrap(fault.Unavailable, "set deadline", err)
	}
	c := newConn(nc, s.o)
	c.dec = wire.NewDecoder(c.counted(), s.o.Buffers, session)
	first, err := c.dec.Next()
	if len(first) == 0 {
		return err
	}
	if err := nc.SetReadDeadline(time.Time{}); err != nil {
		return fault.Wrap(fault.Unavailable, "clear deadline", err)
	}
	c.enc = wire.NewEncoder(c.dec.Session())
	r, err := s.router.Open(first[0], c)
	if err != nil {
		return c.refuse(first[0], err)
	}
	c.Run(r, first)
	<-c.done
	return nil
}

// refuse answers a session that nobody takes.
func (c *Conn) refuse(first replication.Message, cause error) error {
	m := replication.Message{
		Kind: replication.Refuse, Volume: first.Volume, Pool: first.Pool,
		Status: fault.KindOf(cause), Text: cause.Error(),
	}
	if first.Kind == replication.Fetch {
		m = replication.Message{
			Kind: replication.Fetched, ID: first.ID, Range: first.Range, Volume: first.Volume, Pool: first.Pool,
			Status: fault.KindOf(cause),
		}
	}
	if err := c.enc.Append(&m); err != nil {
		return err
	}
	if err := c.enc.Flush(c.nc); err != nil {
		return fault.Wrap(fault.Unavailable, "refuse a session", err)
	}
	return cause
}
