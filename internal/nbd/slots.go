package nbd

import (
	"math/bits"
	"sync"

	"samovar/internal/block"
)

// slot is one request of a session from its parsed header to its written reply. It belongs to the receiver
// until it is submitted, to the device until Done, then to the replier.
type slot struct {
	request block.Request
	replies *replies                    // where Done puts it; fixed
	finish  func(*block.Request, error) // done as a value, made once; a device may have wrapped request.Done
	cookie  uint64
	charge  int64
	code    errno // why the server itself refused it
	err     error // what the device said
}

// done is the request's Done. It gives a write's payload back at once: the device has its own reference.
func (t *slot) done(r *block.Request, err error) {
	if r.Op == block.Write {
		r.Data.Release()
		r.Data = nil
	}
	t.err = err
	t.replies.push(t)
}

// slots bounds the memory of one session, in requests and bytes, and keeps the slots for reuse, so that a
// request costs no allocation. The receiver takes and waits, the replier gives back.
type slots struct {
	mu          sync.Mutex
	changed     sync.Cond
	free        []*slot
	used        int
	bytes       int64
	waiting     bool
	maxRequests int
	maxBytes    int64
	replies     *replies
}

func newSlots(maxRequests int, maxBytes int64, r *replies) *slots {
	s := &slots{maxRequests: maxRequests, maxBytes: maxBytes, replies: r}
	s.changed.L = &s.mu
	return s
}

// chargeOf is what a buffer of n bytes takes from the pool, which hands out powers of two.
func chargeOf(n uint32) int64 {
	return max(int64(1)<<bits.Len32(n-1), preferredBlockBytes)
}

// take returns a slot that holds charge bytes, or nil if there is no room now and wait is false.
func (s *slots) take(charge int64, wait bool) *slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.used >= s.maxRequests || s.bytes+charge > s.maxBytes && s.bytes > 0 {
		if !wait {
			return nil
		}
		s.waiting = true
		s.changed.Wait()
	}
	s.waiting = false
	s.used++
	s.bytes += charge
	var t *slot
	if n := len(s.free); n > 0 {
		t, s.free = s.free[n-1], s.free[:n-1]
	} else {
		t = &slot{replies: s.replies}
		t.finish = t.done
		t.request.Done = t.finish
	}
	t.charge = charge
	return t
}

// give takes slots back.
func (s *slots) give(batch ...*slot) {
	s.mu.Lock()
	for _, t := range batch {
		s.bytes -= t.charge
		t.charge, t.code, t.err = 0, errnoOK, nil
		t.request = block.Request{Done: t.finish}
	}
	s.used -= len(batch)
	s.free = append(s.free, batch...)
	wake := s.waiting
	s.mu.Unlock()
	if wake {
		s.changed.Signal()
	}
}

// idle waits until every slot is back.
func (s *slots) idle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.used > 0 {
		s.waiting = true
		s.changed.Wait()
	}
	s.waiting = false
}

// load is how much is in flight, and whether the receiver waits for room.
func (s *slots) load() (requests int, bytes int64, waiting bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used, s.bytes, s.waiting
}
