package nbd

import (
	"sync"

	"samovar/internal/block"
)

// message is a request on its way to the socket. It holds its own reference to the payload, because the server
// may answer, and the maker release its buffer, before the last byte was written.
type message struct {
	header  request
	data    *block.Buffer
	payload []byte // within data
}

// sendQueue is the queue between Submit and the sender. The flight's bounds keep it short.
type sendQueue struct {
	mu     sync.Mutex
	filled sync.Cond
	ready  []message
	closed bool
}

func newSendQueue() *sendQueue {
	q := &sendQueue{}
	q.filled.L = &q.mu
	return q
}

// push adds messages in order. On a closed queue they are dropped: their requests were completed by whoever
// closed it.
func (q *sendQueue) push(messages []message) {
	if len(messages) == 0 {
		return
	}
	q.mu.Lock()
	closed := q.closed
	if !closed {
		q.ready = append(q.ready, messages...)
	}
	q.mu.Unlock()
	if closed {
		releaseAll(messages)
		return
	}
	q.filled.Signal()
}

// next waits for messages and returns all of them; none when the queue is closed and empty.
func (q *sendQueue) next(spare []message) []message {
	clear(spare)
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.ready) == 0 && !q.closed {
		q.filled.Wait()
	}
	batch := q.ready
	q.ready = spare[:0]
	return batch
}

// close lets next return nothing once the queue is empty.
func (q *sendQueue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.filled.Signal()
}

func releaseAll(messages []message) {
	for _, m := range messages {
		m.data.Release()
	}
}
