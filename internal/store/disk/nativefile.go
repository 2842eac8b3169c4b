//go:build linux

package disk

import (
	"errors"
	"io"
	"io/fs"

	"golang.org/x/sys/unix"
)

// nativeFile is a bare descriptor: os.File would put its own locks and poller between us and the kernel.
type nativeFile struct {
	fd     int
	path   string
	kind   int64 // of the file system
	limits Limits
}

func (f *nativeFile) fail(op string, err error) error {
	return &fs.PathError{Op: op, Path: f.path, Err: err}
}

func (f *nativeFile) ReadAt(p []byte, offset int64) error {
	for done := 0; done < len(p); {
		n, err := unix.Pread(f.fd, p[done:], offset+int64(done))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return f.fail("read", err)
		case n == 0 && done == 0:
			return io.EOF
		case n == 0:
			return io.ErrUnexpectedEOF
		default:
			done += n
		}
	}
	return nil
}

func (f *nativeFile) WriteAt(p []byte, offset int64, durable bool) error {
	if durable {
		return f.writeDurable(p, offset)
	}
	for len(p) > 0 {
		n, err := unix.Pwrite(f.fd, p, offset)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return f.fail("write", err)
		case n == 0:
			return f.fail("write", io.ErrShortWrite)
		default:
			p, offset = p[n:], offset+int64(n)
		}
	}
	return nil
}

func (f *nativeFile) writeDurable(p []byte, offset int64) error {
	for len(p) > 0 {
		n, err := unix.Pwritev2(f.fd, [][]byte{p}, offset, unix.RWF_DSYNC)
		switch {
		case err == unix.EINTR:
		case errors.Is(err, errors.ErrUnsupported):
			if err := f.WriteAt(p, offset, false); err != nil {
				return err
			}
			return f.Sync()
		case err != nil:
			return f.fail("durable write", err)
		case n == 0:
			return f.fail("durable write", io.ErrShortWrite)
		default:
			p, offset = p[n:], offset+int64(n)
		}
	}
	return nil
}

// largestVector is how many pieces one call takes.
const largestVector = LargestVector

func (f *nativeFile) WriteVector(pieces [][]byte, offset int64) error {
	for len(pieces) > 0 {
		n, err := unix.Pwritev(f.fd, pieces[:min(len(pieces), largestVector)], offset)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return f.fail("write", err)
		case n == 0:
			return f.fail("write", io.ErrShortWrite)
		}
		offset += int64(n)
		for len(pieces) > 0 && n >= len(pieces[0]) {
			n -= len(pieces[0])
			pieces = pieces[1:]
		}
		if n > 0 { // a short write ended inside a piece; the caller's slices stay as they are
			if err := f.WriteAt(pieces[0][n:], offset, false); err != nil {
				return err
			}
			offset += int64(len(pieces[0]) - n)
			pieces = pieces[1:]
		}
	}
	return nil
}

func (f *nativeFile) Sync() error {
	for {
		err := unix.Fdatasync(f.fd)
		if err == nil {
			return nil
		}
		if err != unix.EINTR {
			return f.fail("fdatasync", err)
		}
	}
}

func (f *nativeFile) SetSize(size int64) error {
	for {
		err := unix.Ftruncate(f.fd, size)
		if err == nil {
			return nil
		}
		if err != unix.EINTR {
			return f.fail("truncate", err)
		}
	}
}

func (f *nativeFile) Info() (Info, error) {
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return Info{}, f.fail("stat", err)
	}
	return Info{Size: st.Size, Allocated: st.Blocks * 512}, nil
}

// fallocate is tried again after EINTR: the runtime's preemption signals interrupt long allocations.
func (f *nativeFile) fallocate(op string, mode uint32, offset, length int64) error {
	for {
		err := unix.Fallocate(f.fd, mode, offset, length)
		if err == nil {
			return nil
		}
		if err != unix.EINTR {
			return f.fail(op, err)
		}
	}
}

func (f *nativeFile) PunchHole(offset, length int64) error {
	return f.fallocate("punch", unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, length)
}

func (f *nativeFile) ZeroRange(offset, length int64) error {
	return f.fallocate("zero", unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, offset, length)
}

func (f *nativeFile) Allocate(offset, length int64) error {
	return f.fallocate("allocate", unix.FALLOC_FL_KEEP_SIZE, offset, length)
}

// trustHoles tells whether SEEK_HOLE never calls written bytes a hole. On ext4 and XFS the kernel looks for
// dirty pages over unwritten and missing extents, and a direct write converts its extent before the call
// returns; tmpfs looks at the pages themselves. Elsewhere there were releases that forgot dirty data
// (OpenZFS issue 15526), so everything counts as data there: copies are larger, never wrong.
func (f *nativeFile) trustHoles() bool {
	return f.kind == magicExt4 || f.kind == magicXFS || f.kind == magicTmpfs
}

func (f *nativeFile) SeekData(offset int64) (int64, error) {
	if !f.trustHoles() {
		return f.clip(offset)
	}
	at, err := unix.Seek(f.fd, offset, unix.SEEK_DATA)
	if err == unix.ENXIO { // no data behind offset
		info, err := f.Info()
		return info.Size, err
	}
	if err == unix.EINVAL || errors.Is(err, errors.ErrUnsupported) {
		return f.clip(offset)
	}
	if err != nil {
		return 0, f.fail("seek data", err)
	}
	return at, nil
}

func (f *nativeFile) SeekHole(offset int64) (int64, error) {
	info, err := f.Info()
	if err != nil || !f.trustHoles() || offset >= info.Size {
		return info.Size, err
	}
	at, err := unix.Seek(f.fd, offset, unix.SEEK_HOLE)
	if err == unix.ENXIO || err == unix.EINVAL || errors.Is(err, errors.ErrUnsupported) {
		return info.Size, nil
	}
	if err != nil {
		return 0, f.fail("seek hole", err)
	}
	return at, nil
}

// clip is offset, or the size if the file ends before.
func (f *nativeFile) clip(offset int64) (int64, error) {
	info, err := f.Info()
	return min(offset, info.Size), err
}

func (f *nativeFile) Limits() Limits { return f.limits }

func (f *nativeFile) Close() error {
	if err := unix.Close(f.fd); err != nil && err != unix.EINTR {
		return f.fail("close", err)
	}
	return nil
}
