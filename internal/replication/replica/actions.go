package replica

import (
	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/volume"
)

// Session names one connection to this replica, for one run of it. The caller numbers them and never reuses one.
type Session uint64

// Options are fixed for the life of a Replica.
type Options struct {
	// LogLimit is how many regions the dirty-region log may name; at least 2*(MaxRequest/RegionSize+1).
	LogLimit int
	// RecentLimit is how many recent ranges are remembered exactly; beyond it the log stands in for them.
	RecentLimit int
	Bugs        replication.Bugs // simulator only
}

// Send is a message to go out on a session. Messages of one session keep their order.
type Send struct {
	Session Session
	Message replication.Message
}

// Fetch asks the caller to get a range from the replica on another pool, by a Fetch message over a session of its
// own, and to report with Fetched. There may be several at once.
type Fetch struct {
	Token  uint64
	Source volume.PoolID
	Range  volume.Range
	Fence  volume.Fence
}

// Event is something a person wants to know.
type Event struct {
	Reason string // a stable word: "log-failed", "sync-failed", ...
	Text   string
}

// Actions is what the caller must do, gathered since the last call. Slices are reused: take what is in them before
// the next call into the Replica.
type Actions struct {
	Disk    []DiskRequest
	Sends   []Send
	Fetches []Fetch
	Hangups []Session // close these connections after what was sent on them
	Events  []Event

	taken bool // the caller has seen these: the next action starts afresh
}

func (a *Actions) reset() {
	clear(a.Disk)
	clear(a.Sends)
	a.Disk, a.Sends, a.Fetches = a.Disk[:0], a.Sends[:0], a.Fetches[:0]
	a.Hangups, a.Events = a.Hangups[:0], a.Events[:0]
}

// FetchResult answers a Fetch.
type FetchResult struct {
	Token   uint64
	Status  fault.Kind
	Payload replication.Payload
}
