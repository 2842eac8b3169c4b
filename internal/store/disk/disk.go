// Package disk is the small file-system interface under the store: every access of the store to a disk goes
// through it, so that tests can crash it. It must not know what the files mean.
//
//	           FS ── Open ──▶ File        names: Rename, Remove, Mkdir are lasting after SyncDir of the folder
//	           │                          bytes: WriteAt, PunchHole ... are lasting after Sync of the file
//	   ┌───────┴────────┐
//	Native           memory.FS
//	Linux calls      loses what was not synced, fails when told to
//
// A file system may be Queues as well: many reads and writes at a time, by io_uring on Linux (queue.go).
//
// Errors are those of the operating system, possibly wrapped: fs.ErrNotExist, fs.ErrExist, syscall.ENOSPC,
// syscall.EIO, errors.ErrUnsupported, and ErrNoDirect and *LockedError from here.
package disk

import (
	"errors"
	"io"
)

// Flags say how a file is opened. Files are open for reading and writing unless ReadOnly is given.
type Flags uint8

// The flags of Open.
const (
	Create    Flags = 1 << iota // make the file if it does not exist
	Exclusive                   // with Create: fail if it exists
	Truncate                    // cut it to no bytes
	Direct                      // past the page cache; ErrNoDirect if the file system refuses
	ReadOnly                    // only for reading
)

// ErrNoDirect tells that a file cannot be opened past the page cache. Callers open it again without Direct.
var ErrNoDirect = errors.New("the file system has no direct I/O")

// LockedError tells that somebody else holds a lock.
type LockedError struct{ Holder string }

func (e *LockedError) Error() string { return "locked by " + e.Holder }

// Entry is a name in a folder.
type Entry struct {
	Name string
	Dir  bool
}

// Info describes a file or folder.
type Info struct {
	Dir       bool
	Size      int64 // bytes
	Allocated int64 // bytes that it takes on the disk
}

// Space is how full a file system is.
type Space struct {
	Total, Free int64 // bytes; Free is what a process without privileges may use
	BlockSize   int64 // bytes; granule of allocation
	Kind        string
}

// Limits is what an open file asks of its callers.
type Limits struct {
	// Direct: the page cache is bypassed. Offsets and lengths must be multiples of Offset, addresses of Memory.
	// Without Direct both are 1.
	Direct         bool
	Offset, Memory int64
}

// FS is one file system. Paths are complete.
type FS interface {
	Open(path string, flags Flags) (File, error)
	Mkdir(path string) error
	// ReadDir lists a folder in the order of names.
	ReadDir(path string) ([]Entry, error)
	Stat(path string) (Info, error)
	// Rename replaces a file of the new name in one step.
	Rename(from, to string) error
	// Remove takes away a file or an empty folder.
	Remove(path string) error
	// SyncDir makes the names in a folder lasting.
	SyncDir(path string) error
	Space(path string) (Space, error)
	// Lock takes an exclusive lock on a file, which it makes if needed, and leaves holder there for others to
	// see. The lock ends with Close, or with the process. A lock held by another is a *LockedError.
	Lock(path, holder string) (io.Closer, error)
}

// File is an open file. All its methods may be called at the same time; Close is called once, last.
type File interface {
	// ReadAt fills p, or returns io.EOF or io.ErrUnexpectedEOF where the file ends before.
	ReadAt(p []byte, offset int64) error
	// WriteAt writes all of p. If durable, the bytes (and what is needed to find them) are on stable storage
	// when it returns nil; that says nothing about other bytes.
	WriteAt(p []byte, offset int64, durable bool) error
	// WriteVector writes the pieces one behind the other.
	WriteVector(pieces [][]byte, offset int64) error
	// Sync puts all bytes whose writing has returned, and the size, on stable storage. After a failure nobody
	// knows which of them are there, and a later success does not cover them.
	Sync() error
	// SetSize cuts the file or lengthens it with a hole.
	SetSize(size int64) error
	Info() (Info, error)
	// PunchHole makes a range read as zero and gives its space back. ErrUnsupported: nothing was done.
	PunchHole(offset, length int64) error
	// ZeroRange makes a range read as zero and keeps or takes space for it. ErrUnsupported: nothing was done.
	ZeroRange(offset, length int64) error
	// Allocate takes space for a range without changing what it reads as, nor the size. ErrUnsupported: there
	// is no way to do that.
	Allocate(offset, length int64) error
	// SeekData finds the first byte at or behind offset that may hold data, SeekHole the first that is in a
	// hole, which surely reads as zero. Both answer the size of the file where there is none.
	SeekData(offset int64) (int64, error)
	SeekHole(offset int64) (int64, error)
	Limits() Limits
	Close() error
}
