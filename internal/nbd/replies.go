package nbd

import "sync"

// replies is the queue between the device's completions and the session's replier. It holds at most as many
// slots as the session has.
type replies struct {
	mu     sync.Mutex
	filled sync.Cond
	ready  []*slot
	idle   bool // the replier waits
	closed bool
}

func newReplies() *replies {
	r := &replies{}
	r.filled.L = &r.mu
	return r
}

// push adds a finished request. It never blocks for long: it is called from a device's Done.
func (r *replies) push(t *slot) {
	r.mu.Lock()
	r.ready = append(r.ready, t)
	wake := r.idle
	r.idle = false
	r.mu.Unlock()
	if wake {
		r.filled.Signal()
	}
}

// next waits for finished requests and returns all of them, or nothing when the queue was closed. spare is the
// last batch, whose memory is used again.
func (r *replies) next(spare []*slot) []*slot {
	clear(spare)
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.ready) == 0 && !r.closed {
		r.idle = true
		r.filled.Wait()
	}
	r.idle = false
	batch := r.ready
	r.ready = spare[:0]
	return batch
}

// close lets next return nothing once the queue is empty.
func (r *replies) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.filled.Signal()
}
