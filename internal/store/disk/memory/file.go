package memory

import (
	"errors"
	"io"
	"syscall"
	"unsafe"

	"samovar/internal/store/disk"
)

// file is an open file; all its state is in the node, under the lock of the file system.
type file struct {
	fs     *FS
	node   *node
	path   string
	epoch  int
	limits disk.Limits
}

var _ disk.File = (*file)(nil)

// do runs a call under the lock: work if the call may have its effect.
func (f *file) do(op Op, offset, length int64, work func() error) error {
	m := f.fs
	m.mu.Lock()
	defer m.mu.Unlock()
	if f.epoch != m.epoch {
		return wrap(op, f.path, ErrCrashed)
	}
	run, err := m.enter(Call{Op: op, Path: f.path, Offset: offset, Length: length})
	if run {
		if failed := work(); err == nil {
			err = failed
		}
	}
	return wrap(op, f.path, err)
}

// fits checks what direct I/O asks for.
func (f *file) fits(p []byte, offset int64) bool {
	if !f.limits.Direct || len(p) == 0 {
		return true
	}
	return offset%f.limits.Offset == 0 && int64(len(p))%f.limits.Offset == 0 &&
		uintptr(unsafe.Pointer(&p[0]))%uintptr(f.limits.Memory) == 0
}

func (f *file) ReadAt(p []byte, offset int64) error {
	err := f.do(Read, offset, int64(len(p)), func() error {
		if !f.fits(p, offset) {
			return syscall.EINVAL
		}
		n := f.node
		whole := p[:max(0, min(int64(len(p)), n.size-offset))]
		for done := 0; done < len(whole); {
			at := offset + int64(done)
			s, inside := n.data[at/sectorSize], at%sectorSize
			piece := whole[done:min(len(whole), done+int(sectorSize-inside))]
			if s == nil {
				clear(piece)
			} else {
				copy(piece, s[inside:])
			}
			done += len(piece)
		}
		switch {
		case len(whole) == len(p):
			return nil
		case len(whole) == 0:
			return io.EOF
		}
		return io.ErrUnexpectedEOF
	})
	if errors.Is(err, io.EOF) {
		return io.EOF
	} else if errors.Is(err, io.ErrUnexpectedEOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (f *file) WriteAt(p []byte, offset int64, durable bool) error {
	return f.do(Write, offset, int64(len(p)), func() error {
		if !f.fits(p, offset) {
			return syscall.EINVAL
		}
		return f.write(p, offset, durable)
	})
}

func (f *file) WriteVector(pieces [][]byte, offset int64) error {
	total := 0
	for _, p := range pieces {
		total += len(p)
	}
	return f.do(Write, offset, int64(total), func() error {
		for _, p := range pieces {
			if !f.fits(p, offset) {
				return syscall.EINVAL
			}
			if err := f.write(p, offset, false); err != nil {
				return err
			}
			offset += int64(len(p))
		}
		return nil
	})
}

// write stores bytes in the cache, sector by sector, until the disk is full.
func (f *file) write(p []byte, offset int64, durable bool) error {
	n := f.node
	for len(p) > 0 {
		index, inside := offset/sectorSize, offset%sectorSize
		if !f.fs.allocate(n, index*sectorSize/blockSize) {
			return syscall.ENOSPC
		}
		next := new([sectorSize]byte)
		if old := n.data[index]; old != nil {
			*next = *old
		}
		done := copy(next[inside:], p)
		n.put(index, next)
		p, offset = p[done:], offset+int64(done)
		if offset > n.size {
			n.resize(offset)
		}
		if durable && !f.fs.down { // at the moment of a crash it is pending like any other
			keep(n.stable, index, next)
			delete(n.dirty, index)
			n.stableSize = max(n.stableSize, offset)
		}
	}
	return nil
}

// allocate takes a block for a file unless it has it; false if the disk is full.
func (m *FS) allocate(n *node, block int64) bool {
	if n.blocks[block] {
		return true
	}
	if !n.forgotten {
		if m.options.Capacity != 0 && m.used+blockSize > m.options.Capacity {
			return false
		}
		m.used += blockSize
	}
	n.blocks[block] = true
	return true
}

// release gives a block back.
func (m *FS) release(n *node, block int64) {
	if n.blocks[block] {
		delete(n.blocks, block)
		if !n.forgotten {
			m.used -= blockSize
		}
	}
}

func (f *file) Sync() error {
	m, n := f.fs, f.node
	m.mu.Lock()
	defer m.mu.Unlock()
	if f.epoch != m.epoch {
		return wrap(Sync, f.path, ErrCrashed)
	}
	run, err := m.enter(Call{Op: Sync, Path: f.path})
	switch {
	case run:
		n.sync()
	case !m.down:
		n.failSync(m.rng)
	}
	return wrap(Sync, f.path, err)
}

func (f *file) SetSize(size int64) error {
	return f.do(SetSize, size, 0, func() error { f.fs.setSize(f.node, size); return nil })
}

func (m *FS) setSize(n *node, size int64) {
	for index := range n.data {
		switch at := index * sectorSize; {
		case at >= size:
			n.put(index, nil)
		case at+sectorSize > size: // what is behind the end reads as zero if the file grows again
			next := *n.data[index]
			clear(next[size-at:])
			n.put(index, &next)
		}
	}
	for block := range n.blocks {
		if block*blockSize >= size {
			m.release(n, block)
		}
	}
	n.resize(size)
}

func (f *file) Info() (disk.Info, error) {
	m := f.fs
	m.mu.Lock()
	defer m.mu.Unlock()
	if f.epoch != m.epoch || m.down {
		return disk.Info{}, wrap("stat", f.path, ErrCrashed)
	}
	return f.node.info(), nil
}

// erase makes a range read as zero: whole sectors lose their data, the edges are overwritten.
func (f *file) erase(offset, length int64) {
	n, end := f.node, min(offset+length, f.node.size)
	for at := offset; at < end; {
		index, inside := at/sectorSize, at%sectorSize
		next := min(end, (index+1)*sectorSize)
		if s := n.data[index]; s != nil {
			if inside == 0 && next-at == sectorSize {
				n.put(index, nil)
			} else {
				edge := *s
				clear(edge[inside : inside+next-at])
				n.put(index, &edge)
			}
		}
		at = next
	}
}

func (f *file) PunchHole(offset, length int64) error {
	return f.do(Punch, offset, length, func() error {
		if f.fs.options.Bare {
			return errors.ErrUnsupported
		}
		f.erase(offset, length)
		for block := (offset + blockSize - 1) / blockSize; (block+1)*blockSize <= offset+length; block++ {
			f.fs.release(f.node, block)
		}
		return nil
	})
}

func (f *file) ZeroRange(offset, length int64) error {
	return f.do(Zero, offset, length, func() error {
		if f.fs.options.Bare {
			return errors.ErrUnsupported
		}
		if err := f.reserve(offset, length); err != nil {
			return err
		}
		f.erase(offset, length)
		return nil
	})
}

func (f *file) Allocate(offset, length int64) error {
	return f.do(Allocate, offset, length, func() error { return f.reserve(offset, length) })
}

func (f *file) reserve(offset, length int64) error {
	for block := offset / blockSize; block*blockSize < offset+length; block++ {
		if !f.fs.allocate(f.node, block) {
			return syscall.ENOSPC
		}
	}
	return nil
}

func (f *file) SeekData(offset int64) (int64, error) { return f.seek(offset, true) }
func (f *file) SeekHole(offset int64) (int64, error) { return f.seek(offset, false) }

// seek finds the first block from offset on that has data, or has none.
func (f *file) seek(offset int64, data bool) (at int64, err error) {
	err = f.do(Read, offset, 0, func() error {
		n := f.node
		for at = offset; at < n.size; at = (at/blockSize + 1) * blockSize {
			if f.fs.options.HideHoles {
				if data {
					return nil
				}
				continue
			}
			first, has := at/blockSize*(blockSize/sectorSize), false
			for i := range int64(blockSize / sectorSize) {
				has = has || n.data[first+i] != nil
			}
			if has == data {
				return nil
			}
		}
		at = n.size
		return nil
	})
	return at, err
}

func (f *file) Limits() disk.Limits { return f.limits }

func (f *file) Close() error { return nil }
