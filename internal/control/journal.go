package control

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"samovar/internal/etcd/kv"
	"samovar/internal/fault"
	"samovar/internal/resource"
)

const (
	eventsKept   = 500  // of one node in the store
	eventsQueued = 1000 // while the store is away
)

// journal puts events into the cluster store, in order, and keeps them while it is away. The oldest go first when
// there are too many.
type journal struct {
	node  string
	store kv.Store
	log   *slog.Logger
	wake  chan struct{}

	mu      sync.Mutex // guards what follows
	queue   []resource.Event
	number  uint64
	last    int64 // time in the last id: ids grow also when the clock is set back
	dropped int
}

func newJournal(node string, store kv.Store, log *slog.Logger) *journal {
	return &journal{node: node, store: store, log: log, wake: make(chan struct{}, 1)}
}

// add takes an event; it does not block.
func (j *journal) add(e resource.Event) {
	j.mu.Lock()
	j.number++
	e.Time = time.Now().UTC()
	e.Node = j.node
	j.last = max(j.last+1, e.Time.UnixNano())
	e.ID = fmt.Sprintf("%019d-%s-%06d", j.last, j.node, j.number%1000000)
	if len(j.queue) >= eventsQueued {
		j.queue = j.queue[1:]
		j.dropped++
	}
	j.queue = append(j.queue, e)
	j.mu.Unlock()
	level := slog.LevelInfo
	switch e.Level {
	case "warning":
		level = slog.LevelWarn
	case "error":
		level = slog.LevelError
	}
	j.log.Log(context.Background(), level, e.Text, "object", e.Object, "reason", e.Reason, "bytes", e.Bytes)
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// run writes events to the store until ctx ends.
func (j *journal) run(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var own []string
	known := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-j.wake:
		case <-tick.C:
		}
		if !known {
			own, known = j.ownKeys(ctx)
		}
		if known {
			own = j.trim(ctx, append(own, j.flush(ctx)...))
		}
	}
}

// flush writes what is queued, as far as the store takes it, and returns the keys. One goroutine at a time calls it.
func (j *journal) flush(ctx context.Context) (keys []string) {
	for {
		e, ok := j.first()
		if !ok {
			return keys
		}
		call, cancel := context.WithTimeout(ctx, 3*time.Second)
		out := j.store.Put(call, "events/"+e.ID, encode(e))
		cancel()
		switch {
		case out.Verdict == kv.Applied:
			keys = append(keys, "events/"+e.ID)
		case fault.Is(out.Err, fault.Invalid):
			j.log.Error("the cluster store does not take an event", "event", e.ID, "error", out.Err)
		default:
			return keys // again in a moment: the same key, so nothing is written twice
		}
		j.written(e.ID)
	}
}

func (j *journal) first() (resource.Event, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.queue) == 0 {
		return resource.Event{}, false
	}
	return j.queue[0], true
}

func (j *journal) written(id string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.queue) > 0 && j.queue[0].ID == id {
		j.queue = j.queue[1:]
	}
	if j.dropped > 0 {
		j.log.Warn("events were dropped while the cluster store was away", "count", j.dropped)
		j.dropped = 0
	}
}

// ownKeys lists this node's events in the store.
func (j *journal) ownKeys(ctx context.Context) ([]string, bool) {
	call, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	all, err := j.store.List(call, "events/")
	if err != nil {
		return nil, false
	}
	var own []string
	for _, r := range all.Items {
		if nodeOfEvent(r.Key) == j.node {
			own = append(own, r.Key)
		}
	}
	return own, true
}

// nodeOfEvent reads events/TIME-NODE-N; the name of a node may have hyphens.
func nodeOfEvent(key string) string {
	_, rest, _ := strings.Cut(key, "-")
	i := strings.LastIndexByte(rest, '-')
	return rest[:max(i, 0)]
}

// trim removes this node's oldest events.
func (j *journal) trim(ctx context.Context, own []string) []string {
	for len(own) > eventsKept {
		call, cancel := context.WithTimeout(ctx, 3*time.Second)
		out := j.store.Delete(call, own[0])
		cancel()
		if out.Verdict != kv.Applied {
			return own // again after the next event
		}
		own = own[1:]
	}
	return own
}
