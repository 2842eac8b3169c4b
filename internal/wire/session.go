package wire

import (
	"fmt"

	"samovar/internal/fault"
	"samovar/internal/volume"
)

// Session is what both ends of a connection agree on and compare every frame with. It is a plain value: an
// Encoder and a Decoder each keep their own copy.
type Session struct {
	Number        uint64 // made of both connection ids; in every frame
	Version       uint8  // of the protocol, agreed in the preambles
	Local, Remote Purpose

	// Volume, Pool and Epoch are bound by the dialer with Bind, and at the acceptor by the first frame.
	Volume volume.ID
	Pool   volume.PoolID
	Epoch  volume.Epoch
	// Size is the largest size known of the volume in bytes; bitmaps beyond it are refused. Zero: not known.
	Size uint64
}

// Bind names what the session is for. The dialer calls it before it makes an Encoder and a Decoder.
func (s Session) Bind(id volume.ID, pool volume.PoolID, epoch volume.Epoch, size uint64) Session {
	s.Volume, s.Pool, s.Epoch, s.Size = id, pool, epoch, size
	return s
}

func (s *Session) bound() bool { return s.Volume != volume.ID{} }

// grow remembers a size seen in a record; nonsense is left to those who validate the record.
func (s *Session) grow(size uint64) {
	if size <= volume.MaxSize {
		s.Size = max(s.Size, size)
	}
}

// blocks is the limit of bitmaps, also when a peer claims the volume to have size bytes.
func (s *Session) blocks(size uint64) uint64 {
	limit := max(s.Size, size)
	if limit == 0 || limit > volume.MaxSize {
		limit = volume.MaxSize
	}
	return (limit + volume.BlockSize - 1) / volume.BlockSize
}

func (s *Session) op(what string) string { return fmt.Sprintf("%s of session %016x", what, s.Number) }

func (s *Session) fault(kind fault.Kind, what, format string, args ...any) error {
	return fault.New(kind, s.op(what), fmt.Sprintf(format, args...))
}
