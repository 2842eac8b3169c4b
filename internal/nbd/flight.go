package nbd

import (
	"sync"

	"samovar/internal/block"
	"samovar/internal/fault"
)

// pending is one request on the wire: a whole block.Request, or a part of one.
type pending struct {
	request *block.Request
	parts   *parts // of a request in several parts, else nil
	at      uint64 // where the part begins, from the request's start
	length  uint64
	charge  int64
}

// flight is the table of a client's requests in flight. The cookie is place and generation, so that a reply
// to a request that is no longer there is recognised. The bounds make Submit wait.
type flight struct {
	mu         sync.Mutex
	changed    sync.Cond
	table      []pending
	generation []uint32
	free       []uint32
	bytes      int64
	maxBytes   int64
	closing    bool
	lost       error // why the connection is gone
}

func newFlight(maxRequests int, maxBytes int64) *flight {
	f := &flight{
		table: make([]pending, maxRequests), generation: make([]uint32, maxRequests),
		free: make([]uint32, maxRequests), maxBytes: maxBytes,
	}
	for i := range f.free {
		f.free[i] = uint32(maxRequests - 1 - i)
	}
	f.changed.L = &f.mu
	return f
}

// enter reserves a place and returns its cookie. Without room it waits, or returns full if wait is false.
func (f *flight) enter(p pending, wait bool) (cookie uint64, full bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		switch {
		case f.lost != nil:
			return 0, false, f.lost
		case f.closing:
			return 0, false, fault.New(fault.Shutdown, "nbd: submit", "the client was closed")
		}
		if len(f.free) > 0 && (f.bytes == 0 || f.bytes+p.charge <= f.maxBytes) {
			break
		}
		if !wait {
			return 0, true, nil
		}
		f.changed.Wait()
	}
	i := f.free[len(f.free)-1]
	f.free = f.free[:len(f.free)-1]
	f.generation[i]++
	f.table[i] = p
	f.bytes += p.charge
	return uint64(f.generation[i])<<32 | uint64(i), false, nil
}

// find returns what a cookie stands for and leaves it in its place.
func (f *flight) find(cookie uint64) (pending, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := uint32(cookie)
	if uint64(i) >= uint64(len(f.table)) || f.generation[i] != uint32(cookie>>32) || f.table[i].request == nil {
		return pending{}, false
	}
	return f.table[i], true
}

// leave frees the place of a request whose reply was taken.
func (f *flight) leave(cookie uint64) {
	f.mu.Lock()
	i := uint32(cookie)
	f.bytes -= f.table[i].charge
	f.table[i] = pending{}
	f.free = append(f.free, i)
	f.mu.Unlock()
	f.changed.Broadcast()
}

// lose ends everything: nothing enters any more, and what is in flight is returned to be completed.
func (f *flight) lose(why error) []pending {
	f.mu.Lock()
	var all []pending
	f.lost = why
	for i := range f.table {
		if f.table[i].request != nil {
			all = append(all, f.table[i])
			f.table[i] = pending{}
			f.free = append(f.free, uint32(i))
		}
	}
	f.bytes = 0
	f.mu.Unlock()
	f.changed.Broadcast()
	return all
}

// close lets nothing more in; false if that was so already.
func (f *flight) close() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	first := !f.closing
	f.closing = true
	f.changed.Broadcast()
	return first
}

// idle waits until nothing is in flight.
func (f *flight) idle() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.free) < len(f.table) {
		f.changed.Wait()
	}
}

// parts collects the outcome of a request that went out in several parts. The first error stands.
type parts struct {
	mu   sync.Mutex
	left int
	err  error
	data *block.Buffer // of a read
}

// finish counts one part; last tells that the request is complete.
func (p *parts) finish(err error) (last bool, outcome error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
	}
	p.left--
	return p.left == 0, p.err
}
