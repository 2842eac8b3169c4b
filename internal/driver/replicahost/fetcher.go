package replicahost

import (
	"context"
	"sync"
	"time"

	"samovar/internal/driver/link"
	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/replication/replica"
	"samovar/internal/volume"
	"samovar/internal/wire"
)

// fetcher gets data for copies from the replica on one pool, over one session for each fence. Links are never called
// under mu: their other end calls back.
type fetcher struct {
	r      *runner
	source volume.PoolID
	fence  volume.Fence
	cancel context.CancelFunc
	ctx    context.Context

	mu      sync.Mutex // guards what follows
	link    link.Link
	closed  bool
	nextID  uint64
	waiting map[uint64]pending
	queued  []replication.Message // until the session is open
}

type pending struct {
	token uint64
	at    volume.Range
	timer *time.Timer
}

// fetch carries out a Fetch of the state machine. The loop calls it.
func (r *runner) fetch(f replica.Fetch) {
	have := r.fetchers[f.Source]
	if have == nil || have.fence != f.Fence || have.isClosed() {
		if have != nil {
			have.close()
		}
		have = r.newFetcher(f)
		r.fetchers[f.Source] = have
	}
	have.add(f)
}

func (r *runner) newFetcher(f replica.Fetch) *fetcher {
	x := &fetcher{r: r, source: f.Source, fence: f.Fence, waiting: map[uint64]pending{}}
	x.ctx, x.cancel = context.WithCancel(context.Background())
	t := link.Target{Volume: r.key.Volume, Pool: f.Source, Epoch: f.Fence.Epoch, Size: r.store.Size()}
	go func() {
		l, err := r.host.opts.Finder.Connect(x.ctx, t, x)
		x.connected(l, err)
	}()
	return x
}

func (x *fetcher) isClosed() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.closed
}

func (x *fetcher) add(f replica.Fetch) {
	x.mu.Lock()
	if x.closed {
		x.mu.Unlock()
		x.answer(f.Token, fault.Unavailable, nil)
		return
	}
	x.nextID++
	id := x.nextID
	timer := time.AfterFunc(x.r.host.opts.FetchTimeout, x.close) // whatever comes next dials anew
	x.waiting[id] = pending{f.Token, f.Range, timer}
	m := replication.Message{
		Kind: replication.Fetch, ID: id, Range: f.Range, Fence: f.Fence, Volume: x.r.key.Volume, Pool: x.source,
	}
	l := x.link
	if l == nil {
		x.queued = append(x.queued, m)
	}
	x.mu.Unlock()
	if l != nil {
		l.Send([]replication.Message{m})
	}
}

func (x *fetcher) connected(l link.Link, err error) {
	if err != nil {
		x.r.host.opts.Logger.Debug("cannot reach the source of a copy", "pool", x.source.String(), "error", err)
		x.Closed(err)
		return
	}
	x.mu.Lock()
	closed, queued := x.closed, x.queued
	if !closed {
		x.link, x.queued = l, nil
	}
	x.mu.Unlock()
	if closed {
		l.Close()
		return
	}
	l.Send(queued)
}

// settle ends one fetch.
func (x *fetcher) settle(id uint64, status fault.Kind, data replication.Payload) {
	x.mu.Lock()
	defer x.mu.Unlock()
	p, ok := x.waiting[id]
	if !ok {
		return
	}
	delete(x.waiting, id)
	p.timer.Stop()
	if segments, ok := data.(*wire.Segments); status == fault.None && (!ok || segments.Range() != p.at) {
		status, data = fault.Corrupt, nil // not what was asked for
	}
	x.answer(p.token, status, data)
}

func (x *fetcher) answer(token uint64, status fault.Kind, data replication.Payload) {
	x.r.in.Put(event{kind: eventFetched, fetched: replica.FetchResult{Token: token, Status: status, Payload: data}})
}

// Received takes answers of the source.
func (x *fetcher) Received(messages []replication.Message) {
	for i := range messages {
		if messages[i].Kind == replication.Fetched {
			x.settle(messages[i].ID, messages[i].Status, messages[i].Payload)
		}
	}
}

// Closed fails what is under way.
func (x *fetcher) Closed(error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.closed = true
	for id, p := range x.waiting {
		delete(x.waiting, id)
		p.timer.Stop()
		x.answer(p.token, fault.Unavailable, nil)
	}
}

func (x *fetcher) close() {
	x.cancel()
	x.mu.Lock()
	l := x.link
	x.mu.Unlock()
	if l != nil {
		l.Close()
	}
	x.Closed(nil)
}
