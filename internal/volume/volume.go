// Package volume is the vocabulary of the project: identities, ranges, layouts and the configuration record of
// a volume. It knows nothing else: no sockets, files, clocks or goroutines, and no encoding. Every other
// package may import it.
package volume

import "samovar/internal/fault"

// Sizes and limits of volumes, in bytes unless the name says otherwise.
const (
	SectorSize        = 512      // the smallest unit of I/O
	BlockSize         = 64 << 10 // granule of change records and catch-up
	RegionSize        = 1 << 20  // granule of the dirty-region log
	MinExtentSize     = 1 << 20  // smallest extent
	MaxExtentSize     = 1 << 30  // largest extent
	DefaultExtentSize = 64 << 20 // extent size when none is asked for
	MaxExtents        = 16384    // at creation
	MaxRequest        = 32 << 20 // longest write, read, trim or zero that one request may carry
	MaxSize           = 16 << 40 // MaxExtents of the largest extent
	MaxMembers        = 16       // replicas of one volume
	HistoryLength     = 8        // generation ids that a replica remembers
)

// Identities are 128 random bits, created once by an explicit command and never derived.
type (
	ID           [16]byte // of a volume
	PoolID       [16]byte // of a pool: one directory on one disk of one node
	EngineID     [16]byte // of one start of an engine
	GenerationID [16]byte // of one change of the in-sync set
	Incarnation  [16]byte // of one run of a replica: machine boot, mount and process start
)

// Epoch grows with every engine start. Generation grows with every change of the in-sync set. Revision is the
// cluster store's modification counter of a record; it goes back only if that store was restored from a copy.
type (
	Epoch      uint64
	Generation uint64
	Revision   int64
)

func hexadecimal(b []byte) string {
	const digits = "0123456789abcdef"
	out := make([]byte, 0, 2*len(b))
	for _, c := range b {
		out = append(out, digits[c>>4], digits[c&15])
	}
	return string(out)
}

func (id ID) String() string           { return hexadecimal(id[:]) }
func (id PoolID) String() string       { return hexadecimal(id[:]) }
func (id EngineID) String() string     { return hexadecimal(id[:]) }
func (id GenerationID) String() string { return hexadecimal(id[:]) }
func (id Incarnation) String() string  { return hexadecimal(id[:]) }

// ParseID reads the 32 hexadecimal digits that String prints, of any of the identities.
func ParseID(s string) (id [16]byte, err error) {
	bad := fault.New(fault.Invalid, "parse id "+s, "want 32 hexadecimal digits")
	if len(s) != 32 {
		return id, bad
	}
	for i := range 32 {
		c, v := s[i], byte(0)
		switch {
		case c >= '0' && c <= '9':
			v = c - '0'
		case c >= 'a' && c <= 'f':
			v = c - 'a' + 10
		default:
			return [16]byte{}, bad
		}
		id[i/2] = id[i/2]<<4 | v
	}
	return id, nil
}

// MarshalText and UnmarshalText let identities stand in JSON and YAML as their hexadecimal form.
func (id ID) MarshalText() ([]byte, error)           { return []byte(id.String()), nil }
func (id PoolID) MarshalText() ([]byte, error)       { return []byte(id.String()), nil }
func (id EngineID) MarshalText() ([]byte, error)     { return []byte(id.String()), nil }
func (id GenerationID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

func (id *ID) UnmarshalText(b []byte) (err error)           { *id, err = ParseID(string(b)); return }
func (id *PoolID) UnmarshalText(b []byte) (err error)       { *id, err = ParseID(string(b)); return }
func (id *EngineID) UnmarshalText(b []byte) (err error)     { *id, err = ParseID(string(b)); return }
func (id *GenerationID) UnmarshalText(b []byte) (err error) { *id, err = ParseID(string(b)); return }

// Range is a span of bytes of a volume.
type Range struct{ Offset, Length uint64 }

// End is the first byte behind the range.
func (r Range) End() uint64 { return r.Offset + r.Length }

// Overlaps tells whether two ranges share a byte.
func (r Range) Overlaps(o Range) bool { return r.Offset < o.End() && o.Offset < r.End() }

// IsRequest tells whether the range is whole sectors within a volume of size bytes, and not too long for one request.
func (r Range) IsRequest(size uint64) bool {
	return r.Length > 0 && r.Length <= MaxRequest && r.Offset < size && r.Length <= size-r.Offset &&
		r.Offset%SectorSize == 0 && r.Length%SectorSize == 0
}

// Fence says which engine a replica obeys. A replica refuses a lower epoch, and the same epoch with another id.
type Fence struct {
	Epoch  Epoch
	Engine EngineID
}
