package replicahost

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"samovar/internal/fault"
	"samovar/internal/store"
	"samovar/internal/volume"
)

// Checksum sums the bytes of a range of a replica (xxh3, 128 bits) as it would be read. The caller sees to it that
// nobody writes there meanwhile, or repeats what differs.
func (h *Host) Checksum(k Key, at volume.Range) (sum [16]byte, err error) {
	h.mu.Lock()
	r := h.runners[k]
	h.mu.Unlock()
	op := "compare the replica of volume " + k.Volume.String() + " on pool " + k.Pool.String()
	if r == nil {
		return sum, fault.New(fault.NotFound, op, "it does not run here")
	}
	size := r.store.Size()
	if at.Length == 0 || at.Offset >= size || at.Length > size-at.Offset {
		return sum, fault.New(fault.Invalid, op, "the range lies outside the volume")
	}
	const step = 1 << 20
	hash := xxh3.New()
	buf := h.opts.Buffers.Get(step)
	defer func() { buf.Release() }() // the last one
	var zero [64 << 10]byte
	for off := at.Offset; off < at.End(); off += step {
		piece := volume.Range{Offset: off, Length: min(step, at.End()-off)}
		if piece.Length != step {
			buf.Release()
			buf = h.opts.Buffers.Get(int(piece.Length))
		}
		o := &store.Op{Code: store.ReadSegments, Range: piece, Buffer: buf}
		done := make(chan error, 1)
		o.Done = func(_ *store.Op, err error) { done <- err }
		r.store.Submit([]*store.Op{o})
		if err := <-done; err != nil {
			return sum, fault.Wrap(fault.KindOf(err), op, err)
		}
		for _, s := range o.Segments {
			if !s.Hole {
				hash.Write(buf.Bytes()[s.At : s.At+s.Range.Length]) // never fails
				continue
			}
			for left := s.Range.Length; left > 0; {
				n := min(left, uint64(len(zero)))
				hash.Write(zero[:n]) // never fails
				left -= n
			}
		}
	}
	s := hash.Sum128()
	binary.BigEndian.PutUint64(sum[:8], s.Hi)
	binary.BigEndian.PutUint64(sum[8:], s.Lo)
	return sum, nil
}
