package api

import (
	"net/http"
	"time"

	"samovar/internal/api/sse"
	"samovar/internal/resource"
)

// Names of events in streams.
const (
	EventName    = "event"    // /v1/events/stream: a resource.Event
	ChangeName   = "change"   // /v1/watch: something changed
	ProgressName = "progress" // verify: a resource.Progress
	ResultName   = "result"   // verify: the resource.Verified, the last event
	ErrorName    = "error"    // verify: a problem.Body, the last event
)

// streamEvents sends events as they happen, from Last-Event-ID on, or from the parameter since.
func streamEvents(s *Server, w http.ResponseWriter, r *http.Request) error {
	since := r.URL.Query().Get("since")
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		since = last
	}
	return s.follow(w, r, since, false, func(out *sse.Writer, e resource.Event, _ <-chan resource.Event) error {
		data, err := encode(e)
		if err != nil {
			return err
		}
		return out.Send(sse.Message{ID: e.ID, Name: EventName, Data: string(data)})
	})
}

// watch says that something changed: at once, and after every event. Many events in a row are one change, for
// the watcher looks at everything again anyway.
func watch(s *Server, w http.ResponseWriter, r *http.Request) error {
	return s.follow(w, r, "", true, func(out *sse.Writer, e resource.Event, more <-chan resource.Event) error {
		for drained := false; !drained; {
			select {
			case later, ok := <-more:
				if ok {
					e = later
				}
				drained = !ok
			default:
				drained = true
			}
		}
		return out.Send(change(e.ID))
	})
}

func change(id string) sse.Message { return sse.Message{ID: id, Name: ChangeName, Data: "{}"} }

// follow runs a stream of the backend's events until the peer leaves, the source ends or the server closes.
func (s *Server) follow(w http.ResponseWriter, r *http.Request, since string, greet bool,
	send func(out *sse.Writer, e resource.Event, more <-chan resource.Event) error) error {
	source, err := s.backend.Follow(r.Context(), since)
	if err != nil {
		return err
	}
	out, err := sse.NewWriter(w, s.options.BodyTimeout)
	if err != nil {
		return err
	}
	if greet {
		if err := out.Send(change("")); err != nil {
			return err
		}
	}
	alive := time.NewTicker(s.options.KeepAlive)
	defer alive.Stop()
	for {
		select {
		case <-r.Context().Done():
			return nil
		case <-alive.C:
			err = out.Comment("alive")
		case e, ok := <-source:
			if !ok {
				return nil // the follower asks again, from its last id
			}
			err = send(out, e, source)
			alive.Reset(s.options.KeepAlive)
		}
		if err != nil {
			return err
		}
	}
}
