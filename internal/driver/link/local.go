package link

import (
	"sync"

	"samovar/internal/replication"
)

// local is one end of a session within the process.
type local struct {
	pair *pair
	peer *local
	recv Receiver // of this end
}

// pair is shared by both ends.
type pair struct {
	mu     sync.Mutex // orders deliveries against the end; receivers only queue, so it is held shortly
	closed bool
}

// Local makes a session within the process: accept gets the far end and returns its receiver, r is the near one's.
func Local(r Receiver, accept func(Link) (Receiver, error)) (Link, error) {
	p := &pair{}
	near, far := &local{pair: p, recv: r}, &local{pair: p}
	near.peer, far.peer = far, near
	// The far end may answer only after its first message, so its receiver is set before anybody sends.
	recv, err := accept(far)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	far.recv = recv
	p.mu.Unlock()
	return near, nil
}

func (l *local) Send(messages []replication.Message) {
	l.pair.mu.Lock()
	defer l.pair.mu.Unlock()
	if !l.pair.closed && l.peer.recv != nil {
		l.peer.recv.Received(messages)
	}
}

func (l *local) Hangup() { l.Close() }

func (l *local) Close() {
	l.pair.mu.Lock()
	defer l.pair.mu.Unlock()
	if l.pair.closed {
		return
	}
	l.pair.closed = true
	for _, end := range [2]*local{l, l.peer} {
		if end.recv != nil {
			end.recv.Closed(nil)
		}
	}
}
