//go:build linux

package disk

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Native is the file system of the machine. It has no state.
type Native struct{}

var _ FS = Native{}

// Magic numbers of file systems, from statfs(2).
const (
	magicExt4  = 0xef53
	magicXFS   = 0x58465342
	magicTmpfs = 0x01021994
	magicBtrfs = 0x9123683e
	magicZFS   = 0x2fc12fc1
	magicNFS   = 0x6969
)

var kinds = map[int64]string{
	magicExt4: "ext4", magicXFS: "xfs", magicTmpfs: "tmpfs", magicBtrfs: "btrfs", magicZFS: "zfs", magicNFS: "nfs",
}

// guessedAlignment is asked of direct I/O where the kernel (before 6.1) does not say what it needs.
const guessedAlignment = 4096

// Open opens a file.
func (Native) Open(path string, flags Flags) (File, error) {
	mode := unix.O_RDWR | unix.O_CLOEXEC
	if flags&ReadOnly != 0 {
		mode = unix.O_RDONLY | unix.O_CLOEXEC
	}
	for flag, bit := range map[Flags]int{
		Create: unix.O_CREAT, Exclusive: unix.O_EXCL, Truncate: unix.O_TRUNC, Direct: unix.O_DIRECT,
	} {
		if flags&flag != 0 {
			mode |= bit
		}
	}
	fd, err := openRetry(path, mode)
	if err == unix.EINVAL && flags&Direct != 0 {
		return nil, &fs.PathError{Op: "open", Path: path, Err: ErrNoDirect}
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := &nativeFile{fd: fd, path: path, limits: Limits{Offset: 1, Memory: 1}}
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err == nil {
		f.kind = int64(st.Type)
	}
	if flags&Direct != 0 {
		if f.limits, err = directLimits(fd, f.kind); err != nil {
			unix.Close(fd)
			return nil, &fs.PathError{Op: "open", Path: path, Err: err}
		}
	}
	return f, nil
}

func openRetry(path string, mode int) (int, error) {
	for {
		fd, err := unix.Open(path, mode, 0o600)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// directLimits asks the kernel what direct I/O on a file needs. tmpfs accepts the flag and then uses the page
// cache all the same, so it counts as refusing.
func directLimits(fd int, kind int64) (Limits, error) {
	var st unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &st)
	switch {
	case kind == magicTmpfs:
		return Limits{}, ErrNoDirect
	case err != nil || st.Mask&unix.STATX_DIOALIGN == 0:
		return Limits{Direct: true, Offset: guessedAlignment, Memory: guessedAlignment}, nil
	case st.Dio_offset_align == 0 || st.Dio_mem_align == 0:
		return Limits{}, ErrNoDirect
	}
	return Limits{Direct: true, Offset: int64(st.Dio_offset_align), Memory: int64(st.Dio_mem_align)}, nil
}

// Mkdir makes a folder.
func (Native) Mkdir(path string) error { return os.Mkdir(path, 0o700) }

// ReadDir lists a folder.
func (Native) ReadDir(path string) ([]Entry, error) {
	list, err := os.ReadDir(path)
	entries := make([]Entry, 0, len(list))
	for _, e := range list {
		entries = append(entries, Entry{Name: e.Name(), Dir: e.IsDir()})
	}
	return entries, err
}

// Stat describes a file or folder; a symbolic link is followed, so that a pool may be reached by one.
func (Native) Stat(path string) (Info, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return Info{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return Info{Dir: st.Mode&unix.S_IFMT == unix.S_IFDIR, Size: st.Size, Allocated: st.Blocks * 512}, nil
}

// Rename moves a name.
func (Native) Rename(from, to string) error { return os.Rename(from, to) }

// Remove takes a name away.
func (Native) Remove(path string) error { return os.Remove(path) }

// SyncDir makes the names in a folder lasting.
func (Native) SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	err = d.Sync()
	d.Close()
	return err
}

// Space asks how full the file system is.
func (Native) Space(path string) (Space, error) {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(path, &st)
		if err == nil {
			break
		}
		if err != unix.EINTR {
			return Space{}, &fs.PathError{Op: "statfs", Path: path, Err: err}
		}
	}
	kind := kinds[int64(st.Type)]
	if kind == "" {
		kind = "other"
	}
	return Space{
		Total: int64(st.Blocks) * st.Bsize, Free: int64(st.Bavail) * st.Bsize, BlockSize: st.Bsize, Kind: kind,
	}, nil
}

// Lock takes a flock(2) on a file. It belongs to this opening: two in one process exclude each other too.
func (Native) Lock(path, holder string) (io.Closer, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		note := make([]byte, 128)
		n, _ := f.ReadAt(note, 0)
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, &LockedError{Holder: strings.TrimRight(string(note[:n]), "\x00 \n")}
		}
		return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
	}
	// The note is for people; a full disk must not keep a pool from opening. It has one length, so that it is
	// written over the old one and needs no space after the first time.
	note := []byte(strings.Repeat(" ", 64) + "\n")
	copy(note[:64], holder)
	_, _ = f.WriteAt(note, 0)
	return f, nil
}
