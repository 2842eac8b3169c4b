package store

import (
	"samovar/internal/bitmap"
	"samovar/internal/store/disk"
	"samovar/internal/volume"
)

// regionLog is the dirty-region log of one replica. Its owner is the log lane of the replica: nobody else
// touches it between opening and closing.
//
// Adding a region waits for stable storage; dropping one does not, and is even left out of the file until an
// entry is written for another reason: a region that comes back before that costs nothing. What is on disk is
// therefore always a superset of what was asked for, by a few regions: all of them are copied after a crash.
type regionLog struct {
	replace  func(name string, content []byte) error // makes a file anew, in one step
	random   func() uint64
	fs       disk.FS
	dir      string
	pool     volume.PoolID
	volume   volume.ID
	capacity int // bytes

	file   disk.File // nil: none is trusted
	id     uint64
	slots  int
	next   int // slot
	number uint64

	regions *bitmap.Bitmap // what was asked for
	stored  *bitmap.Bitmap // what the file says, durably
	toDrop  *bitmap.Bitmap // in stored, not in regions
	toAdd   *bitmap.Bitmap // in regions, not in stored
}

// change takes regions out and puts regions in, in memory.
func (l *regionLog) change(add, drop []uint64) {
	for _, n := range drop {
		l.regions.Remove(n, n+1)
		l.toAdd.Remove(n, n+1)
		if l.stored.Has(n) {
			l.toDrop.Add(n, n+1)
		}
	}
	for _, n := range add {
		l.regions.Add(n, n+1)
		l.toDrop.Remove(n, n+1)
		if !l.stored.Has(n) {
			l.toAdd.Add(n, n+1)
		}
	}
}

// settled tells whether every region that was added is durably in the file.
func (l *regionLog) settled() bool { return l.file != nil && l.toAdd.Empty() }

// dropsKept is how many dropped regions may stand in the file for want of another reason to write an entry.
const dropsKept = 8

// overdue tells whether more dropped regions stand in the file than that.
func (l *regionLog) overdue() bool { return l.file != nil && l.toDrop.Count() > dropsKept }

// commit makes the file say what was asked for, durably. After an error the file is not trusted any more: the
// kernel may have dropped what it could not write and call it clean, so nothing is ever appended behind it. The
// next commit starts a new file.
func (l *regionLog) commit() error {
	if l.file == nil {
		return l.rewrite()
	}
	drops, adds := l.toDrop.Append(nil), l.toAdd.Append(nil)
	slots := entrySlots(len(drops), len(adds))
	if l.next+slots > l.slots || len(drops) > largestChange || len(adds) > largestChange {
		return l.rewrite()
	}
	entry := appendEntry(make([]byte, 0, slots*logSlot), l.id, l.number+1, drops, adds)
	// Not a durable write in one call: most file systems turn that into the same two steps.
	err := l.file.WriteAt(entry, int64(l.next)*logSlot, false)
	if err == nil {
		err = l.file.Sync()
	}
	if err != nil {
		l.distrust()
		return err
	}
	l.next += slots
	l.number++
	l.absorb()
	return nil
}

// absorb notes that the file says what was asked for.
func (l *regionLog) absorb() {
	l.toDrop.Runs(func(from, to uint64) bool { l.stored.Remove(from, to); return true })
	l.stored.Union(l.toAdd)
	l.toDrop.Clear()
	l.toAdd.Clear()
}

func (l *regionLog) distrust() {
	if l.file != nil {
		_ = l.file.Close()
		l.file = nil
	}
}

// rewrite starts a new file with one entry.
func (l *regionLog) rewrite() error {
	l.distrust()
	id := l.random()
	content := encodeLog(l.pool, l.volume, id, l.capacity, l.regions)
	if err := l.replace(logName, content); err != nil {
		return err
	}
	file, err := l.fs.Open(logPath(l.dir), 0)
	if err != nil {
		return err
	}
	l.file, l.id, l.number = file, id, 1
	l.slots = len(content) / logSlot
	l.next = 1 + entrySlots(0, len(l.regions.Append(nil)))
	l.stored = l.regions.Clone()
	l.toDrop.Clear()
	l.toAdd.Clear()
	return nil
}

// close writes what was dropped, so that a clean stop leaves a short log, and closes the file.
func (l *regionLog) close() (err error) {
	if l.file != nil && !l.toDrop.Empty() {
		err = l.commit()
	}
	l.distrust()
	return err
}
