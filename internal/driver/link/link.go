// Package link carries the messages of one session between an engine, or a copying replica, and a replica: over TCP,
// or within the process when both live on the same node. It knows sockets and the wire format, and nothing of what
// messages mean.
//
// One connection is one session, in order. Sending never blocks: what may be outstanding is bounded by the engine's
// limits on requests in flight, and a peer that does not read is given up by the engine's ping time-out, which
// closes the link.
package link

import (
	"sync/atomic"

	"samovar/internal/replication"
)

// Link is one end of a session.
type Link interface {
	// Send takes messages over, with one reference of each payload, in order. The slice may be used again.
	Send(messages []replication.Message)
	// Hangup ends the session after what was sent. Close ends it at once.
	Hangup()
	Close()
}

// Receiver gets what the other end sends. Calls come one after the other and must not block; the messages' payload
// references are the receiver's, the slice is not.
type Receiver interface {
	Received(messages []replication.Message)
	// Closed is the last call.
	Closed(err error)
}

// Counters count bytes on sockets, in both directions, of all links that share them.
type Counters struct {
	Sent, Received atomic.Uint64
}
