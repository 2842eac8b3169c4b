package api

import (
	"context"
	"net/http"
	"time"

	"samovar/internal/api/problem"
	"samovar/internal/api/sse"
	"samovar/internal/fault"
	"samovar/internal/resource"
)

// verification answers one request to compare a volume's copies, with a stream of how far it is.
//
//	nothing sent --progress or keep-alive--> streaming --> result or error event
//	     |
//	     +--error--> a plain problem with its status
type verification struct {
	server *Server
	w      http.ResponseWriter
	out    *sse.Writer // nil: nothing sent
	began  time.Time

	progress chan resource.Progress // holds the newest, or nothing

	// end is closed by the goroutine that compares when it has set the fields below.
	end      chan struct{}
	verified resource.Verified
	err      error
}

func verify(s *Server, w http.ResponseWriter, r *http.Request) error {
	name, err := s.volumeName(w, r, "verify", &struct{}{})
	if err != nil {
		return err
	}
	v := &verification{server: s, w: w, began: time.Now(),
		progress: make(chan resource.Progress, 1), end: make(chan struct{})}
	ctx, cancel := context.WithCancel(r.Context())
	go v.compare(ctx, name)
	defer func() { cancel(); <-v.end }() // the backend may hold what belongs to this request
	alive := time.NewTicker(s.options.KeepAlive)
	defer alive.Stop()
	for {
		select {
		case <-v.end:
			return v.finish(name)
		case p := <-v.progress:
			err = v.send(ProgressName, p)
			alive.Reset(s.options.KeepAlive)
		case <-alive.C:
			if err = v.open(); err == nil {
				err = v.out.Comment("alive")
			}
		}
		if err != nil {
			return err
		}
	}
}

// compare runs the backend's comparison; it ends soon after ctx.
func (v *verification) compare(ctx context.Context, name string) {
	defer close(v.end)
	defer func() {
		if p := recover(); p != nil {
			v.err = v.server.panicked("verify volume "+name, p)
		}
	}()
	v.verified, v.err = v.server.backend.Verify(ctx, name, func(done, todo uint64) {
		p := estimate(done, todo, time.Since(v.began))
		for {
			select {
			case v.progress <- p:
				return
			case <-v.progress: // an older one that nobody took: a slow peer must not hold the comparison up
			}
		}
	})
}

// finish sends the last progress, if nobody took it, and the result or the error.
func (v *verification) finish(name string) error {
	select {
	case p := <-v.progress:
		if v.err == nil {
			if err := v.send(ProgressName, p); err != nil {
				return err
			}
		}
	default:
	}
	if v.err == nil {
		return v.send(ResultName, v.verified)
	}
	if v.server.closed.Err() != nil {
		v.err = v.server.ending("verify volume " + name)
	}
	if v.out == nil {
		return v.err
	}
	if problem.KindOf(v.err) == fault.Internal {
		v.server.log.Error("a comparison failed", "volume", name, "error", v.err)
	}
	body, _ := problem.Of(v.err)
	return v.send(ErrorName, body)
}

// open begins the stream if that has not happened.
func (v *verification) open() (err error) {
	if v.out == nil {
		v.out, err = sse.NewWriter(v.w, v.server.options.BodyTimeout)
	}
	return err
}

func (v *verification) send(name string, value any) error {
	if err := v.open(); err != nil {
		return err
	}
	data, err := encode(value)
	if err != nil {
		return fault.Wrap(fault.Internal, "encode an event", err)
	}
	return v.out.Send(sse.Message{Name: name, Data: string(data)})
}

// estimate says how fast a comparison goes and when it will end.
func estimate(done, todo uint64, took time.Duration) resource.Progress {
	p := resource.Progress{Todo: todo, Done: done}
	if took < time.Second || done == 0 {
		return p
	}
	p.Rate = uint64(float64(done) / took.Seconds())
	if p.Rate > 0 && todo > done {
		p.Left = (time.Duration((todo-done)/p.Rate) * time.Second).String()
	}
	return p
}
