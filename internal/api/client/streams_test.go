package client_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"samovar/internal/api"
	"samovar/internal/api/client"
	"samovar/internal/api/fake"
	"samovar/internal/fault"
	"samovar/internal/resource"
)

// TestFollowResumesElsewhere follows through a node whose source breaks, then through its end, and misses nothing.
func TestFollowResumesElsewhere(t *testing.T) {
	backend := fake.New()
	first := api.NewServer(backend, api.Options{})
	second := api.NewServer(backend, api.Options{})
	n := newNotices()
	c := dial(t, client.Options{Retry: time.Millisecond, Notice: n.add}, node(t, first), node(t, second))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events, ended := make(chan resource.Event), make(chan error, 1)
	go func() {
		ended <- c.Follow(ctx, "0000000000000001", func(e resource.Event) error { events <- e; return nil })
	}()
	want := func(id string) {
		t.Helper()
		select {
		case e := <-events:
			if e.ID != id {
				t.Fatalf("event %s, want %s", e.ID, id)
			}
		case err := <-ended:
			t.Fatal(err)
		}
	}
	want("0000000000000002")
	want("0000000000000003")
	backend.Break()
	backend.Publish("volume tea", "four", "", "info")
	want("0000000000000004")
	first.Close() // the stream ends, and the node refuses another
	backend.Publish("volume tea", "five", "", "info")
	want("0000000000000005")
	backend.Publish("volume tea", "six", "", "info")
	want("0000000000000006")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if told := strings.Join(n.all(), "\n"); !strings.Contains(told, "ended the stream") {
		t.Errorf("told %q", told)
	}
}

// TestStreamComesBack has every node fail for a while: the stream waits for one to return.
func TestStreamComesBack(t *testing.T) {
	backend := fake.New()
	n := newNotices()
	c := dial(t, client.Options{Retry: time.Millisecond, Notice: n.add}, node(t, api.NewServer(backend, api.Options{})))
	changes, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- c.Watch(t.Context(), func() error {
			select {
			case changes <- struct{}{}:
				return nil
			case <-t.Context().Done():
				return io.EOF
			}
		})
	}()
	<-changes
	backend.Fail("Follow", fault.New(fault.Unavailable, "follow", "the cluster store is away"))
	backend.Break()
	for range 3 { // broken, refused, refused
		<-n.come
	}
	backend.Fail("Follow", nil)
	<-changes // said again after an interruption
	// A refusal that repeating cannot help ends it.
	backend.Fail("Follow", fault.New(fault.Permission, "follow", "no"))
	backend.Break()
	if err := <-ended; !fault.Is(err, fault.Permission) {
		t.Errorf("%v", err)
	}
}

func TestStreamStopsByItsReader(t *testing.T) {
	c := dial(t, client.Options{}, node(t, api.NewServer(fake.New(), api.Options{})))
	enough := fault.New(fault.Unavailable, "x", "an error that would be tried again were it the stream's")
	n := 0
	err := c.Follow(t.Context(), "0", func(resource.Event) error { n++; return enough })
	if !errors.Is(err, enough) || n != 1 {
		t.Errorf("%d %v", n, err)
	}
}

// TestSilentStream has a node that begins a stream and falls silent.
func TestSilentStream(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "event: change\ndata: {}\n\n")
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	n := newNotices()
	c := dial(t, client.Options{Retry: time.Millisecond, Silence: 20 * time.Millisecond, Notice: n.add}, node(t, h))
	calls := 0
	err := c.Watch(t.Context(), func() error {
		if calls++; calls == 3 {
			return io.EOF
		}
		return nil
	})
	if err != io.EOF || !strings.Contains(strings.Join(n.all(), "\n"), "sent nothing for 20ms") {
		t.Errorf("%v %q", err, n.all())
	}
	if _, err := c.Verify(t.Context(), "tea", nil); !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "sent nothing") {
		t.Errorf("verify: %v", err)
	}
}

// TestKeepAliveHoldsAStream runs a stream far longer than the call's time-out; only comments come.
func TestKeepAliveHoldsAStream(t *testing.T) {
	backend := fake.New()
	n := newNotices()
	c := dial(t, client.Options{Timeout: 100 * time.Millisecond, Silence: 2 * time.Second, Notice: n.add},
		node(t, api.NewServer(backend, api.Options{KeepAlive: 5 * time.Millisecond})))
	go func() {
		if backend.Followed(t.Context()) == nil {
			time.Sleep(300 * time.Millisecond) // three times the call's time-out
			backend.Publish("volume tea", "late", "", "info")
		}
	}()
	err := c.Follow(t.Context(), "", func(e resource.Event) error { return io.EOF })
	if err != io.EOF || len(n.all()) != 0 {
		t.Errorf("%v, told %q", err, n.all())
	}
}

func TestGarbageInStreams(t *testing.T) {
	for name, text := range map[string]string{"event": "event: event\ndata: nonsense\n\n", "result": "event: result\ndata: [\n\n", "progress": "event: progress\ndata: 1\n\n", "error": "event: error\ndata: 1\n\n"} {
		c := dial(t, client.Options{}, node(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, "event: unknown\ndata: x\n\n"+text)
		})))
		var err error
		if name == "event" {
			err = c.Follow(t.Context(), "", func(resource.Event) error { return nil })
		} else {
			_, err = c.Verify(t.Context(), "tea", nil)
		}
		if !fault.Is(err, fault.Corrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
