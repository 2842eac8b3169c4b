package store

import (
	"samovar/internal/bitmap"
	"samovar/internal/block"
	"samovar/internal/fault"
	"samovar/internal/volume"
)

// Code is what an Op asks for.
type Code uint8

// The operations. "Durable" means: on stable storage when Done is called without an error.
const (
	Read          Code = 1  // Range into Buffer
	ReadSegments  Code = 2  // Range into Buffer and Segments; holes are told as such, their bytes in Buffer are not touched
	Write         Code = 3  // Buffer to Range; durable if FUA
	WriteSegments Code = 4  // Segments, their bytes from Buffer; a hole becomes a hole or zeroes; durable if FUA
	Zero          Code = 5  // Range reads as zero; Punch gives its space back, else it keeps or gets space; durable if FUA
	Sync          Code = 6  // all data whose operation was done before this one was submitted is durable
	Reserve       Code = 7  // writing Range later does not fail for lack of space
	LogChange     Code = 8  // takes regions Drop out of the log, then puts Add in, durably; a drop need not be durable
	SaveState     Code = 9  // State, durably and in one step
	SaveRecord    Code = 10 // Record of one absent pool, durably and in one step
	DropRecord    Code = 11 // removes the record of Record.Pool; may come back in a crash
	SaveMissing   Code = 12 // Missing, durably and in one step
)

var codeNames = [...]string{
	Read: "read", ReadSegments: "read for a copy", Write: "write", WriteSegments: "write of a copy", Zero: "zero",
	Sync: "flush", Reserve: "reserve", LogChange: "change log", SaveState: "save state", SaveRecord: "save change record",
	DropRecord: "drop change record", SaveMissing: "save missing blocks",
}

// String names the operation for people.
func (c Code) String() string {
	if int(c) < len(codeNames) && codeNames[c] != "" {
		return codeNames[c]
	}
	return "unknown operation"
}

// Segment is a piece of the range of a ReadSegments or WriteSegments. The pieces of an operation stand in order
// and cover its range without gaps.
type Segment struct {
	Range volume.Range
	Hole  bool
	// At is where the bytes of the piece stand in the operation's Buffer; it means nothing for a hole.
	// ReadSegments leaves each byte at its distance from the start of the range.
	At uint64
}

// Op is one operation. It belongs to the store from Submit until Done is called, and so does everything that
// it points to; only State, Record and Missing are read within Submit and may be changed right after. The store
// keeps no reference to Buffer: its owner releases it after Done.
//
// Operations whose ranges overlap must not be under way together (a Sync has no range); neither must one that
// depends on the effect of another. Ranges are in whole sectors.
type Op struct {
	Code     Code
	FUA      bool
	Punch    bool
	Range    volume.Range
	Buffer   *block.Buffer
	Segments []Segment
	Add      []uint64 // regions
	Drop     []uint64 // regions
	State    *volume.ReplicaState
	Record   *volume.ChangeRecord
	Missing  *bitmap.Bitmap
	Token    uint64 // the owner's; the store does not look at it
	// Done is called once, from any goroutine, possibly before Submit has returned. It must not block, nor
	// close the replica or the pool. After an error the effect is unknown. err carries a fault.Kind.
	Done func(*Op, error)

	replica *Replica
	next    *Op
	name    string // file lane: of the file
	file    []byte // file lane: its content, nil to remove it
	state   *volume.ReplicaState
}

// opList is a queue of operations, linked through them so that queueing takes no memory.
type opList struct {
	head, tail *Op
	count      int
}

func (l *opList) push(op *Op) {
	op.next = nil
	if l.tail == nil {
		l.head = op
	} else {
		l.tail.next = op
	}
	l.tail = op
	l.count++
}

func (l *opList) pop() *Op {
	op := l.head
	if op != nil {
		l.head, op.next = op.next, nil
		l.count--
		if l.head == nil {
			l.tail = nil
		}
	}
	return op
}

func (l *opList) join(o opList) {
	if o.head == nil {
		return
	}
	if l.tail == nil {
		*l = o
		return
	}
	l.tail.next = o.head
	l.tail = o.tail
	l.count += o.count
}

// check tells what is wrong with an operation on a volume of size bytes.
func (op *Op) check(size uint64) error {
	bad := func(text string) error { return fault.New(fault.Invalid, op.Code.String(), text) }
	switch op.Code {
	case Read, ReadSegments, Write, WriteSegments, Zero, Reserve:
		r := op.Range
		if r.Length == 0 || r.Offset%volume.SectorSize != 0 || r.Length%volume.SectorSize != 0 ||
			r.Length > size || r.Offset > size-r.Length {
			return bad("the range is not in whole sectors inside the volume")
		}
	}
	switch op.Code {
	case Read, ReadSegments, Write:
		if op.Buffer == nil || uint64(op.Buffer.Len()) != op.Range.Length {
			return bad("the buffer is not as long as the range")
		}
	case WriteSegments:
		return op.checkSegments()
	case Zero, Sync, Reserve:
	case LogChange:
		limit := regionsOf(size)
		for _, list := range [][]uint64{op.Add, op.Drop} {
			for _, n := range list {
				if n >= limit {
					return bad("a region is outside the volume")
				}
			}
		}
	case SaveState:
		if op.State == nil || op.State.Accepted.Size != size {
			return bad("there is no state, or its size is not that of the data")
		}
	case SaveRecord:
		if op.Record == nil || op.Record.Pool == (volume.PoolID{}) || outside(op.Record.Blocks, blocksOf(size)) {
			return bad("there is no record, or it names no pool or blocks outside the volume")
		}
	case DropRecord:
		if op.Record == nil {
			return bad("there is no record")
		}
	case SaveMissing:
		if outside(op.Missing, blocksOf(size)) {
			return bad("it names blocks outside the volume")
		}
	default:
		return bad("there is no such operation")
	}
	return nil
}

// outside tells whether a bitmap has a block at or behind limit.
func outside(b *bitmap.Bitmap, limit uint64) bool {
	_, _, found := b.Next(limit, 1)
	return found
}

func (op *Op) checkSegments() error {
	at, have := op.Range.Offset, uint64(0)
	if op.Buffer != nil {
		have = uint64(op.Buffer.Len())
	}
	for _, s := range op.Segments {
		if s.Range.Offset != at || s.Range.Length == 0 || s.Range.Length%volume.SectorSize != 0 ||
			s.Range.Length > op.Range.End()-at {
			return fault.New(fault.Invalid, op.Code.String(), "the pieces do not cover the range in order")
		}
		at = s.Range.End()
		if !s.Hole && (s.Range.Length > have || s.At > have-s.Range.Length) {
			return fault.New(fault.Invalid, op.Code.String(), "a piece has no bytes in the buffer")
		}
	}
	if at != op.Range.End() {
		return fault.New(fault.Invalid, op.Code.String(), "the pieces do not cover the range")
	}
	return nil
}
