package store

import (
	"errors"
	"sync"
	"unsafe"

	"samovar/internal/block"
	"samovar/internal/store/disk"
	"samovar/internal/volume"
)

// dataFile reads and writes exact ranges of bytes of a replica's data file, whatever alignment direct I/O asks
// for. There is one descriptor, and all I/O goes through it: a second one with the page cache beside a direct
// one would see, and write back, pages that the direct one has overtaken.
//
// What does not fit the alignment is patched: the block is read, changed and written, all direct. Only two
// patches of one block can meet: any other operation that touches a byte of the block covers all of it, so it
// overlaps the patch, and overlapping operations are never under way together (Op). edges keeps patches of one
// block apart. A patch writes the neighbours' bytes back as they are; a crash can tear it only at sectors of the
// disk, and each of those holds old or new bytes of its own.
//
// A volume that does not end on a boundary of the alignment is opened through the page cache, since a direct
// write of its last block would make the file longer.
type dataFile struct {
	file    disk.File
	size    uint64
	limits  disk.Limits
	granule int64 // of holes: a multiple of the alignment and of the file system's block
	buffers *block.Pool
	zeroes  []byte // never written to
	edges   [64]sync.Mutex
}

const bounceSize = 256 << 10

// fits tells whether p may go to offset as it is.
func (d *dataFile) fits(p []byte, offset int64) bool {
	unit := d.limits.Offset
	return unit == 1 || offset%unit == 0 && int64(len(p))%unit == 0 && d.addressFits(p)
}

func (d *dataFile) addressFits(p []byte) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(p)))%uintptr(d.limits.Memory) == 0
}

// read fills p. Holes read as zero.
func (d *dataFile) read(p []byte, offset int64) error {
	if d.fits(p, offset) {
		return d.file.ReadAt(p, offset)
	}
	unit := d.limits.Offset
	bounce := d.buffers.Get(bounceSize)
	defer bounce.Release()
	for len(p) > 0 {
		start := offset / unit * unit
		skip := int(offset - start)
		n := min(len(p), bounceSize-skip)
		whole := (int64(skip+n) + unit - 1) / unit * unit
		if err := d.file.ReadAt(bounce.Bytes()[:whole], start); err != nil {
			return err
		}
		copy(p[:n], bounce.Bytes()[skip:])
		p, offset = p[n:], offset+int64(n)
	}
	return nil
}

// write writes p. If durable, it is on stable storage afterwards.
func (d *dataFile) write(p []byte, offset int64, durable bool) error {
	if d.fits(p, offset) {
		return d.file.WriteAt(p, offset, durable)
	}
	unit := d.limits.Offset
	for len(p) > 0 {
		var n int
		var err error
		if skip := offset % unit; skip != 0 || int64(len(p)) < unit {
			n = min(len(p), int(unit-skip))
			err = d.patch(p[:n], offset, durable)
		} else {
			n = len(p) / int(unit) * int(unit)
			n, err = d.writeBlocks(p[:n], offset, durable)
		}
		if err != nil {
			return err
		}
		p, offset = p[n:], offset+int64(n)
	}
	return nil
}

// writeBlocks writes whole blocks, by way of aligned memory if need be; it may write only some of them.
func (d *dataFile) writeBlocks(p []byte, offset int64, durable bool) (int, error) {
	if d.addressFits(p) {
		return len(p), d.file.WriteAt(p, offset, durable)
	}
	bounce := d.buffers.Get(bounceSize)
	defer bounce.Release()
	n := copy(bounce.Bytes(), p)
	return n, d.file.WriteAt(bounce.Bytes()[:n], offset, durable)
}

// patch changes part of one block.
func (d *dataFile) patch(p []byte, offset int64, durable bool) error {
	unit := d.limits.Offset
	start := offset / unit * unit
	edge := &d.edges[uint64(start/unit)%uint64(len(d.edges))]
	edge.Lock()
	defer edge.Unlock()
	bounce := d.buffers.Get(int(unit))
	defer bounce.Release()
	if err := d.file.ReadAt(bounce.Bytes(), start); err != nil {
		return err
	}
	copy(bounce.Bytes()[offset-start:], p)
	return d.file.WriteAt(bounce.Bytes(), start, durable)
}

// writeVector writes pieces one behind the other.
func (d *dataFile) writeVector(pieces [][]byte, offset int64) error {
	at, fit := offset, true
	for _, p := range pieces {
		fit = fit && d.fits(p, at)
		at += int64(len(p))
	}
	if fit {
		return d.file.WriteVector(pieces, offset)
	}
	for _, p := range pieces {
		if err := d.write(p, offset, false); err != nil {
			return err
		}
		offset += int64(len(p))
	}
	return nil
}

// zero makes exactly a range read as zero. Whole granules are left to the file system; the edges, and
// everything if it cannot, are written. punch gives space back, and leaves holes alone; without it the range
// keeps its space, or gets some.
func (d *dataFile) zero(offset, length int64, punch bool) error {
	end := offset + length
	first := (offset + d.granule - 1) / d.granule * d.granule
	last := end / d.granule * d.granule
	if first >= last {
		return d.writeZeroes(offset, end, punch)
	}
	err := d.zeroGranules(first, last-first, punch)
	if errors.Is(err, errors.ErrUnsupported) {
		return d.writeZeroes(offset, end, punch)
	}
	if err == nil {
		err = d.writeZeroes(offset, first, punch)
	}
	if err == nil {
		err = d.writeZeroes(last, end, punch)
	}
	return err
}

func (d *dataFile) zeroGranules(offset, length int64, punch bool) error {
	if punch {
		if err := d.file.PunchHole(offset, length); !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
	}
	return d.file.ZeroRange(offset, length)
}

// writeZeroes writes zeroes, if skipHoles only where there may be data: what is a hole reads as zero already,
// also while a neighbour in the same block is being written.
func (d *dataFile) writeZeroes(from, to int64, skipHoles bool) error {
	for from < to {
		end := to
		if skipHoles {
			data, hole, err := d.next(from, to)
			if err != nil || data == to {
				return err
			}
			from, end = data, hole
		}
		n := min(end-from, int64(len(d.zeroes)))
		if err := d.write(d.zeroes[:n], from, false); err != nil {
			return err
		}
		from += n
	}
	return nil
}

// next finds the first stretch of data in [from, to): data is where it begins, or to, and hole where it ends.
//
// It is safe to call the rest holes: a file system reports a hole only where no write has put bytes. Writes that
// are done have either converted their extent (direct) or left dirty pages, which the kernel looks for
// (disk.Native trusts only file systems that do); writes under way never overlap this range (Op).
func (d *dataFile) next(from, to int64) (data, hole int64, err error) {
	if data, err = d.file.SeekData(from); err != nil {
		return 0, 0, err
	}
	if data >= to {
		return to, to, nil
	}
	if hole, err = d.file.SeekHole(data); err != nil {
		return 0, 0, err
	}
	// Sectors are the unit of everything above.
	data -= data % volume.SectorSize
	hole += (volume.SectorSize - hole%volume.SectorSize) % volume.SectorSize
	return max(data, from), min(hole, to), nil
}

// segments reads the data of a range into p and lists data and holes behind list.
func (d *dataFile) segments(list []Segment, p []byte, offset int64) ([]Segment, error) {
	end := offset + int64(len(p))
	add := func(from, to int64, hole bool) {
		if from < to {
			list = append(list, Segment{
				Range: volume.Range{Offset: uint64(from), Length: uint64(to - from)}, Hole: hole, At: uint64(from - offset),
			})
		}
	}
	for at := offset; at < end; {
		data, hole, err := d.next(at, end)
		if err != nil {
			return list, err
		}
		if hole <= data && data < end { // never: but a loop without progress would be worse than a large copy
			hole = end
		}
		add(at, data, true)
		add(data, hole, false)
		if data < hole {
			if err := d.read(p[data-offset:hole-offset], data); err != nil {
				return list, err
			}
		}
		at = max(hole, data)
	}
	return list, nil
}

// holes adds up what of a range may need new space to be written, in whole granules.
func (d *dataFile) holes(offset, length int64) (need int64, err error) {
	end := offset + length
	for at := offset; at < end; {
		data, hole, err := d.next(at, end)
		if err != nil {
			return 0, err
		}
		need += data - at
		at = max(hole, data, at+1)
	}
	return need, nil
}
