package replica

import (
	"samovar/internal/bitmap"
	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/volume"
)

// DiskOp is what a DiskRequest asks of the medium.
type DiskOp uint8

// The operations. "Durable" means: on stable storage when the result arrives, or the result is an error.
const (
	DiskRead      DiskOp = 1  // Range of the data, into the result's Payload; holes may be described as such
	DiskWrite     DiskOp = 2  // Range and Payload; durable if FUA
	DiskCopyWrite DiskOp = 3  // Range and Payload with holes, from a Fetched message; a hole becomes a hole or zeroes
	DiskZero      DiskOp = 4  // Range reads as zero afterwards; Punch gives space back; durable if FUA
	DiskSync      DiskOp = 5  // all data whose write was completed before this request is durable
	DiskReserve   DiskOp = 6  // writing Range later cannot fail for lack of space
	LogChange     DiskOp = 7  // adds regions Add durably; forgets regions Drop (need not be durable)
	SaveState     DiskOp = 8  // State, durably and atomically
	SaveRecord    DiskOp = 9  // Record of one absent pool, durably and atomically
	DropRecord    DiskOp = 10 // removes the record of Record.Pool; need not be durable
	SaveMissing   DiskOp = 11 // Missing (what this replica lacks), durably and atomically
)

// DiskRequest is one operation for the store. Requests that change overlapping ranges are never under way together,
// and a request that depends on another is issued only after that one's result. A read may overlap a change only for
// a copy that was given up; its result is dropped.
type DiskRequest struct {
	Token   uint64 // returned in the result
	Op      DiskOp
	Range   volume.Range
	Payload replication.Payload
	FUA     bool
	Punch   bool
	Holes   bool // DiskRead: for a copy, so holes are told as such
	// SkipHoles is a planted bug for the simulator; stores ignore it.
	SkipHoles bool
	Add, Drop []uint64 // LogChange: region numbers
	State     *volume.ReplicaState
	Record    *volume.ChangeRecord
	Missing   *bitmap.Bitmap
}

// DiskResult tells how a request ended. After an error the effect of the request is unknown.
type DiskResult struct {
	Token   uint64
	Status  fault.Kind
	Payload replication.Payload // DiskRead
}
