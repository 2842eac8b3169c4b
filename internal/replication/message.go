// Package replication holds the vocabulary that the engine and the replica of a volume share: the messages
// between them. The two state machines live in the packages engine and replica below it.
//
// Pure: values only. No sockets, files, clocks, goroutines; nothing here or below reaches net, os or sync, and
// of time only Duration. How a message looks on the wire is the business of the wire package.
//
// A session is one ordered connection from an engine to a replica (or from a replica that copies to the replica
// that is its source). Messages of one session arrive in order or not at all; a session that lost one is closed.
//
//	engine                               replica
//	  Hello{fence, full}       ------->    drains older sessions, raises the fence durably
//	               <-------    Welcome{incarnation, what it knows}   or Refuse{reason} and close
//	  Write, Zero, Read, Sync  ------->    ...
//	               <-------    Ack{ID}     one for each, in any order
//	  Ping{Stamp}              ------->
//	               <-------    Pong{Stamp}
package replication

import (
	"time"

	"samovar/internal/bitmap"
	"samovar/internal/fault"
	"samovar/internal/volume"
)

// Kind numbers go on the wire and are never reused.
type Kind uint8

// The messages. E: sent by an engine, R: by a replica, C: by a copying replica to its source.
const (
	Hello    Kind = 1  // E opens a session and raises the fence
	Welcome  Kind = 2  // R is fenced and drained; tells all it knows
	Refuse   Kind = 3  // R refuses the session: Status, Fence (its own), Text; the session is closed
	Write    Kind = 4  // E Range, Payload, FUA
	Zero     Kind = 5  // E Range, FUA, Punch: exactly these bytes read as zero afterwards
	Read     Kind = 6  // E Range
	Sync     Kind = 7  // E everything that this replica acknowledged is on stable storage
	Ack      Kind = 8  // R answers Write, Zero, Read (with Payload), Sync, Reserve, Copy, and every setting message
	Ping     Kind = 9  // E Stamp: asks to confirm the epoch
	Pong     Kind = 10 // R Stamp as in the ping: confirmed
	Reserve  Kind = 11 // E Range: make sure that writing it cannot fail for lack of space
	Prepare  Kind = 12 // E Configuration as it stands, accepted first; Generation, GenerationID of a change about to be proposed; durable before its Ack
	Accept   Kind = 13 // E Configuration; durable, with change records started or dropped, before its Ack
	CatchUp  Kind = 14 // E Bitmap: the receiver is not in-sync and lacks these blocks; durable before its Ack
	Records  Kind = 15 // E Record: replaces the receiver's change record of one absent replica
	Settled  Kind = 16 // E doubtful ranges of earlier epochs are identical everywhere
	Copy     Kind = 17 // E to the target: Range, Source: fetch this from there and write it
	Cancel   Kind = 18 // E to the target: Target is the ID of a Copy to give up; that Copy's Ack follows
	Fetch    Kind = 19 // C to the source: Range, Fence of the engine that ordered the copy
	Fetched  Kind = 20 // R answers Fetch: Status, Payload with holes
	NeedSync Kind = 21 // R its log is filling: please sync
)

// Payload is data on its way. The state machines never look inside; drivers and the simulator give it a type.
// For Fetched and the write of a copy it describes data and holes.
type Payload any

// Knowledge is what a replica tells in its Welcome.
type Knowledge struct {
	Incarnation volume.Incarnation
	// Accepted is the last configuration accepted; Prepared and PreparedID the change last prepared.
	Accepted   volume.Configuration
	Prepared   volume.Generation
	PreparedID volume.GenerationID
	History    []volume.GenerationID // newest first, at most volume.HistoryLength
	// Broken: writes that this replica acknowledged may be lost (it restarted with a dirty log, or a sync
	// failed). Doubt then covers its whole log.
	Broken bool
	// Doubt lists ranges that may differ from other replicas: recent ranges, and the log if Broken.
	Doubt []volume.Range
	// CatchingUp: not in-sync by its own state, Missing is what it lacks, Base the generation at which it was
	// last in-sync.
	CatchingUp bool
	Base       volume.Generation
	BaseID     volume.GenerationID
	Missing    *bitmap.Bitmap
	// Records, only if the Hello asked for everything.
	Records []volume.ChangeRecord
	Size    uint64 // bytes of the data file's volume
}

// Message is one message of any kind; unused fields are zero.
type Message struct {
	Kind   Kind
	Status fault.Kind // Ack, Refuse, Fetched
	FUA    bool
	Punch  bool // Zero: give the space back
	Full   bool // Hello: send records too. CatchUp: the beginning, not progress

	// ID numbers requests of one epoch, from 1, in the order in which the engine started them; an Ack carries
	// the ID of what it answers. Overlapping requests are never under way together, so order on the wire
	// matters only within the log.
	ID uint64
	// Completed and Flushed, on every message of an engine: every write-like request with an ID up to
	// Completed was completed by every in-sync replica; up to Flushed, synced by every one.
	Completed, Flushed uint64

	Range   volume.Range
	Payload Payload
	Stamp   time.Duration // Ping, Pong: the engine's clock when the ping was sent; Hello, Welcome: when the Hello was

	Volume volume.ID
	Pool   volume.PoolID // of the replica that this session is for; checked by the receiver
	Fence  volume.Fence  // Hello, Refuse, Fetch

	Source volume.PoolID // Copy
	Target uint64        // Cancel
	// Forward lists replicas to which the receiver passes a Write or Zero on. Version 1 sends it empty and
	// refuses any other.
	Forward []volume.PoolID

	Generation    volume.Generation     // Prepare; CatchUp: the base
	GenerationID  volume.GenerationID   // Prepare; CatchUp: the base
	Configuration *volume.Configuration // Accept, Prepare; Hello: the record that the engine claimed
	Bitmap        *bitmap.Bitmap        // CatchUp
	Record        *volume.ChangeRecord  // Records
	Knowledge     *Knowledge            // Welcome
	Text          string                // Refuse: for people
	Credit        uint64                // Welcome, Ack, Pong: bytes that the engine may newly write in all, since Welcome
}

// MaxRuns bounds the runs of a bitmap in a message: a set that is more scattered is sent as a superset.
const MaxRuns = 1 << 20

// Blocks gives the first and last+1 block that a range touches.
func Blocks(r volume.Range) (from, to uint64) {
	if r.Length == 0 {
		return r.Offset / volume.BlockSize, r.Offset / volume.BlockSize
	}
	return r.Offset / volume.BlockSize, (r.End() + volume.BlockSize - 1) / volume.BlockSize
}

// Regions gives the first and last+1 log region that a range touches.
func Regions(r volume.Range) (from, to uint64) {
	if r.Length == 0 {
		return r.Offset / volume.RegionSize, r.Offset / volume.RegionSize
	}
	return r.Offset / volume.RegionSize, (r.End() + volume.RegionSize - 1) / volume.RegionSize
}
