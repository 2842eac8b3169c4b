package volume

import "samovar/internal/bitmap"

// ReplicaState is the small durable state of a replica, saved as one under a checksum. Bitmaps and the log are
// kept beside it.
type ReplicaState struct {
	Volume ID
	Pool   PoolID
	Fence  Fence
	// Accepted is the last configuration accepted, with its revision.
	Accepted Configuration
	// Prepared and PreparedID name the change of the in-sync set that was last prepared; it may not have happened.
	Prepared   Generation
	PreparedID GenerationID
	// History holds the ids of accepted generations, newest first, at most HistoryLength.
	History []GenerationID
	// CatchingUp: this replica is not in-sync and no source; Base names the last generation in which it was.
	CatchingUp bool
	Base       Generation
	BaseID     GenerationID
}

// ChangeRecord is what a replica knows an absent one to lack.
type ChangeRecord struct {
	Pool PoolID // the absent replica
	// Start is the first generation whose every write is in the record. A record helps a replica that left at
	// generation Start or later; one that left earlier needs everything.
	Start  Generation
	Blocks *bitmap.Bitmap // in units of BlockSize
}

// Stored is all that a store holds of a replica when it is opened.
type Stored struct {
	State   ReplicaState
	Log     []uint64 // regions in the log, in units of RegionSize: not known to be clean
	Records []ChangeRecord
	Missing *bitmap.Bitmap // what a replica that is catching up lacks, in units of BlockSize
	// Incarnation is new at every opening.
	Incarnation Incarnation
}
