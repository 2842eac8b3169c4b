package store

import (
	"errors"
	"io"
	"io/fs"
	"path"
	"strings"
	"syscall"

	"samovar/internal/fault"
	"samovar/internal/store/disk"
)

// temporary ends the name of a file that is being written. It counts for nothing until it is renamed.
const temporary = ".new"

// largestFile bounds how much of a small file is read into memory.
const largestFile = 1 << 30

// diskFault gives an error of the file system its kind.
func diskFault(op string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		return &fault.Error{Kind: fault.NoSpace, Op: op, Err: err,
			Text: "the pool's file system is full; free space on it"}
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return &fault.Error{Kind: fault.Corrupt, Op: op, Err: err,
			Text: "the data file ends before the end of the volume: something else has cut it off"}
	}
	return fault.Wrap(fault.IO, op, err)
}

// replaceFile puts content in the place of a file in one step: whatever happens, the file is the old or the
// new one. After an error it may be either.
func replaceFile(fsys disk.FS, dir, name string, content []byte) error {
	target := path.Join(dir, name)
	if err := writeFile(fsys, target+temporary, content); err != nil {
		return err
	}
	if err := fsys.Rename(target+temporary, target); err != nil {
		return err
	}
	return fsys.SyncDir(dir)
}

// writeFile makes a file and puts its bytes, not its name, on stable storage. After a failure what there is of
// it is removed: on a full disk it would take the space that others need.
func writeFile(fsys disk.FS, name string, content []byte) error {
	f, err := fsys.Open(name, disk.Create|disk.Truncate)
	if err != nil {
		return err
	}
	err = f.WriteAt(content, 0, false)
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		_ = fsys.Remove(name)
	}
	return err
}

// readFile reads a small file whole.
func readFile(fsys disk.FS, name string) ([]byte, error) {
	f, err := fsys.Open(name, disk.ReadOnly)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Info()
	if err != nil {
		return nil, err
	}
	if info.Size > largestFile {
		return nil, fault.New(fault.Corrupt, "read file", "it is far too long")
	}
	content := make([]byte, info.Size)
	if len(content) == 0 {
		return content, nil
	}
	return content, f.ReadAt(content, 0)
}

// removeTree takes a folder away with everything in it.
func removeTree(fsys disk.FS, dir string) error {
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := path.Join(dir, e.Name)
		if e.Dir {
			err = removeTree(fsys, name)
		} else {
			err = fsys.Remove(name)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return fsys.Remove(dir)
}

// allocatedTree adds up what a folder takes on the disk, as far as it can be seen.
func allocatedTree(fsys disk.FS, dir string) (bytes uint64) {
	entries, _ := fsys.ReadDir(dir)
	for _, e := range entries {
		name := path.Join(dir, e.Name)
		if e.Dir {
			bytes += allocatedTree(fsys, name)
		} else if info, err := fsys.Stat(name); err == nil {
			bytes += uint64(info.Allocated)
		}
	}
	return bytes
}

// withFile names the file in a fault that a parser found; a missing file is damage, since nobody but the store
// takes files away. The way out is the same for all: the bytes of this replica are no longer trusted, those of
// the others are.
func withFile(op, name string, err error) error {
	kind := fault.KindOf(err)
	var f *fault.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		kind = fault.Corrupt
		err = errors.New("the file is missing")
	case !errors.As(err, &f):
		return diskFault(op+": file "+name, err)
	}
	way := "restore the file from a copy; the volume goes on with its other replicas, so leave this one's folder as it is"
	switch kind {
	case fault.Newer:
		return fault.Wrap(kind, op+": file "+name, err)
	case fault.Foreign:
		way = "put the right disk or folder back, or " + way
	}
	return &fault.Error{Kind: kind, Op: op + ": file " + name, Text: strings.TrimSuffix(err.Error(), ".") + "; " + way}
}
