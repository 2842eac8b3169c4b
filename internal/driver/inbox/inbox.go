// Package inbox is the one way into an owner goroutine: many goroutines put events in, one takes all that are there.
// Batches form by themselves under load, and putting never blocks, so the limits on what may be outstanding are
// those of the protocols above (requests in flight), not of the queue.
package inbox

import "sync"

// Inbox holds events in order of arrival. The zero value is not usable: use New.
type Inbox[T any] struct {
	wake chan struct{} // holds one token while there are events

	mu     sync.Mutex // guards what follows
	events []T
	closed bool
}

// New makes an empty inbox.
func New[T any]() *Inbox[T] { return &Inbox[T]{wake: make(chan struct{}, 1)} }

// Put adds events; false if the inbox was closed, and the events stay the caller's.
func (b *Inbox[T]) Put(events ...T) bool {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return false
	}
	first := len(b.events) == 0
	b.events = append(b.events, events...)
	b.mu.Unlock()
	if first {
		select {
		case b.wake <- struct{}{}:
		default:
		}
	}
	return true
}

// Wake is readable while there may be events.
func (b *Inbox[T]) Wake() <-chan struct{} { return b.wake }

// Take returns all events and keeps spare as memory for the next ones.
func (b *Inbox[T]) Take(spare []T) []T {
	b.mu.Lock()
	defer b.mu.Unlock()
	events := b.events
	b.events = spare[:0]
	return events
}

// Close refuses further events and returns those that nobody took.
func (b *Inbox[T]) Close() []T {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	events := b.events
	b.events = nil
	return events
}
