package engine

import (
	"time"

	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/volume"
)

// Session names one connection to a replica, for the life of the engine. The caller numbers them.
type Session uint64

// Options are fixed for the life of an Engine.
type Options struct {
	Engine volume.EngineID
	Node   string        // written into the record as holder
	Mode   string        // written into the record: "explicit", "automatic" or "recovery"
	Local  volume.PoolID // a pool on this node, preferred for reads; zero if none

	PingInterval time.Duration // between pings; a fifth of PingTimeout or less
	PingTimeout  time.Duration // silence of a replica, counted while this engine runs, after which it is dropped
	SlowAfter    time.Duration // a request that another replica has done and this one has not for so long: it is dropped; 0: never
	SlowFor      time.Duration // a replica is set aside if for so long it was always behind by a fifth of SlowAfter
	Lease        time.Duration // T of rule 10
	AttachWait   time.Duration // how long an attachment waits for in-sync replicas beyond those it needs
	CopyDeadline time.Duration // after which a copy is given up and tried again
	SyncInterval time.Duration // after which unsynced writes are synced without being asked
	RetryDelay   time.Duration // first pause before a failed step is tried again; doubles up to 16 times that
	Copies       int           // copies under way at once
	CopyBlocks   uint64        // longest copy, in blocks
	FailStopped  bool          // on-no-quorum=io-error instead of suspend-io

	NewGeneration func() volume.GenerationID // randomness, injected
	Bugs          replication.Bugs           // simulator only
}

// Request is one I/O of a client. Op is replication.Write, Zero, Read or Sync; or Fetch, which completes when nobody
// writes to Range, and keeps it so until Release or a deadline, for somebody who compares the replicas.
type Request struct {
	ID      uint64 // the caller's; comes back in the Completion
	Op      replication.Kind
	Range   volume.Range
	FUA     bool
	Punch   bool
	Payload replication.Payload // Write
}

// Completion ends a Request.
type Completion struct {
	ID      uint64
	Status  fault.Kind
	Payload replication.Payload // Read
}

// Send is a message to a replica.
type Send struct {
	Pool    volume.PoolID
	Session Session
	Message replication.Message
}

// Proposal asks for a compare-and-swap of the volume's record: Next is written if the record still has revision
// Next.Revision. Revisions repeat after the cluster store was restored from a copy, so the caller also refuses, as a
// Conflict, a Next whose epoch is lower than the record's, or equal to it with another engine in the record. The
// caller answers with Proposed.
type Proposal struct {
	Token uint64
	Next  volume.Configuration
}

// Outcome of a proposal.
type Outcome uint8

// The outcomes.
const (
	Applied  Outcome = 1 // written; the configuration in the answer carries the new revision
	Conflict Outcome = 2 // not written; the configuration in the answer is the current one
	Unknown  Outcome = 3 // no answer: it may or may not have been written
)

// Hangup closes a connection.
type Hangup struct {
	Pool    volume.PoolID
	Session Session
}

// Event is something a person wants to know. Reason is a stable word.
type Event struct {
	Reason string
	Pool   volume.PoolID // zero if none is concerned
	Text   string
	Bytes  uint64
}

// Actions is what the caller must do, gathered since the last call. Slices are reused: take what is in them before
// the next call into the Engine.
type Actions struct {
	Sends       []Send
	Completions []Completion
	Proposals   []Proposal
	Looks       []uint64        // tokens: read the record linearizably and answer with Looked
	Dials       []volume.PoolID // connect to the replica there; answer with Connected or DialFailed
	Hangups     []Hangup
	Events      []Event
	Released    []replication.Payload // payloads of writes that will not be sent again

	taken bool // the caller has seen these: the next action starts afresh
}

func (a *Actions) reset() {
	clear(a.Sends)
	clear(a.Completions)
	a.Sends, a.Completions = a.Sends[:0], a.Completions[:0]
	a.Proposals, a.Looks, a.Dials = a.Proposals[:0], a.Looks[:0], a.Dials[:0]
	clear(a.Released)
	a.Hangups, a.Events, a.Released = a.Hangups[:0], a.Events[:0], a.Released[:0]
}

// Phase is where an engine is in its life.
type Phase uint8

// The phases, in order.
const (
	Claiming  Phase = 1 // the record is being claimed
	Fencing   Phase = 2 // replicas are being fenced
	Waiting   Phase = 3 // leases of an older engine may still run
	Settling  Phase = 4 // replicas that were not reached are being removed
	Serving   Phase = 5 // requests are served; doubtful ranges and absent replicas may still be copied
	Detaching Phase = 6 // the last requests are drained and synced
	Ended     Phase = 7 // nothing more is answered; Status says why
)

var phases = [...]string{"", "claiming", "fencing", "waiting", "settling", "serving", "detaching", "ended"}

func (p Phase) String() string { return phases[p] }

// MemberStatus is one replica as its engine sees it.
type MemberStatus struct {
	Pool      volume.PoolID
	InSync    bool
	Connected bool
	State     string // "in-sync", "catching-up", "absent", "failing", "refused"
	OutOfSync uint64 // bytes not known to be there
	Cause     string // why it is not in-sync, in words
}

// Status is the engine as a person sees it.
type Status struct {
	Phase     Phase
	Reason    fault.Kind // why it ended
	Text      string
	Suspended string // why I/O waits now, or empty
	Doubtful  uint64 // bytes still to be made identical
	Copied    uint64 // bytes of ranges copied between replicas since the attachment, holes included
	Lossy     bool   // at attachment no replica with an unbroken incarnation was reached
	Members   []MemberStatus
	Record    volume.Configuration
}
