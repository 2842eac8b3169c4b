package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"sync/atomic"
	"time"

	"samovar/internal/api/problem"
	"samovar/internal/api/request"
	"samovar/internal/api/sse"
	"samovar/internal/fault"
	"samovar/internal/resource"
)

// Follow hands events to each as they happen: those behind the event since, or from now on if since is empty.
// A broken stream is opened again, at whichever node answers, behind the last event seen. Follow returns nil
// when ctx ends, each's error when it returns one, and an error if no stream could be opened at the beginning.
func (c *Client) Follow(ctx context.Context, since string, each func(resource.Event) error) error {
	return c.stream(ctx, "follow events", "/v1/events/stream", since, func(m sse.Message) error {
		if m.Name != "event" {
			return nil
		}
		var e resource.Event
		if err := json.Unmarshal([]byte(m.Data), &e); err != nil {
			return fault.New(fault.Corrupt, "follow events", "an event is not what a samovar node sends: "+err.Error())
		}
		return each(e)
	})
}

// Watch calls changed at once and whenever something changed since; also after an interruption, for something may
// have. It ends as Follow does.
func (c *Client) Watch(ctx context.Context, changed func() error) error {
	return c.stream(ctx, "watch for changes", "/v1/watch", "", func(m sse.Message) error {
		if m.Name != "change" {
			return nil
		}
		return changed()
	})
}

// stopped is an error of the one who takes the messages: it ends a stream for good.
type stopped struct{ error }

// stream keeps a stream open.
func (c *Client) stream(ctx context.Context, op, path, since string, each func(sse.Message) error) error {
	began, pause, last := false, c.options.Retry, since
	for {
		k := call{op: op, method: "GET", path: path, header: http.Header{"Accept": {sse.ContentType}}}
		if last != "" {
			k.header.Set("Last-Event-ID", last)
		}
		endpoint, err := c.listen(ctx, k, func(m sse.Message) error {
			pause = c.options.Retry
			if err := each(m); err != nil {
				return stopped{err}
			}
			last = cmp.Or(m.ID, last)
			return nil
		})
		stop, own := errors.AsType[stopped](err)
		began = began || endpoint != ""
		switch {
		case own:
			return stop.error
		case ctx.Err() != nil:
			return nil
		case !began, !again(err):
			return err
		}
		c.options.Notice(cmp.Or(endpoint, "the cluster"), err)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		pause = min(2*pause, 20*c.options.Retry)
	}
}

// again tells whether opening a stream once more can help.
func again(err error) bool {
	switch fault.KindOf(err) {
	case fault.None, fault.Unavailable, fault.Aborted, fault.Shutdown:
		return true
	}
	return false
}

// listen opens a stream, at whichever node answers, and hands on its messages until it ends.
func (c *Client) listen(ctx context.Context, k call, each func(sse.Message) error) (endpoint string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	k.stream = true
	err = c.ask(ctx, k, func(a answer) error {
		endpoint = a.endpoint
		if media, _, _ := mime.ParseMediaType(a.response.Header.Get("Content-Type")); media != sse.ContentType {
			return fault.New(fault.Internal, k.op, a.endpoint+" answered with no event stream; check the address")
		}
		var silent atomic.Bool
		guard := time.AfterFunc(c.options.Silence, func() { silent.Store(true); cancel() })
		defer guard.Stop()
		reader := sse.NewReader(&noisy{a.response.Body, func() { guard.Reset(c.options.Silence) }})
		for {
			m, err := reader.Next()
			switch {
			case err == nil:
				err = each(m)
			case silent.Load():
				err = fault.New(fault.Unavailable, k.op, fmt.Sprintf("%s sent nothing for %v", endpoint, c.options.Silence))
			case !fault.Is(err, fault.Corrupt):
				err = fault.New(fault.Unavailable, k.op, endpoint+" ended the stream")
			}
			if err != nil {
				return err
			}
		}
	})
	return endpoint, err
}

// noisy tells of every read that brought something.
type noisy struct {
	io.Reader
	heard func()
}

func (n *noisy) Read(p []byte) (int, error) {
	k, err := n.Reader.Read(p)
	if k > 0 {
		n.heard()
	}
	return k, err
}

// Verify compares all copies of a volume and tells progress. It takes as long as it takes: only ctx and a node
// that falls silent end it early. Nothing is changed by it, so it can be run again.
func (c *Client) Verify(ctx context.Context, name string, progress func(resource.Progress)) (result resource.Verified, err error) {
	if err := request.Name("volume", name); err != nil {
		return result, err
	}
	k := call{op: "verify volume " + name, method: "POST", path: "/v1/volumes/" + name + "/verify"}
	_, err = c.listen(ctx, k, func(m sse.Message) error {
		switch m.Name {
		case "progress":
			var p resource.Progress
			if err := json.Unmarshal([]byte(m.Data), &p); err != nil {
				return fault.Wrap(fault.Corrupt, k.op, err)
			}
			if progress != nil {
				progress(p)
			}
		case "result":
			if err := json.Unmarshal([]byte(m.Data), &result); err != nil {
				return fault.Wrap(fault.Corrupt, k.op, err)
			}
			return stopped{io.EOF}
		case "error":
			var body problem.Body
			if err := json.Unmarshal([]byte(m.Data), &body); err != nil {
				return fault.Wrap(fault.Corrupt, k.op, err)
			}
			return body.Error.Err()
		}
		return nil
	})
	if _, ended := errors.AsType[stopped](err); ended {
		return result, nil
	}
	return result, err
}
