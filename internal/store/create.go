package store

import (
	"errors"
	"io/fs"
	"path"
	"strings"
	"time"

	"samovar/internal/bitmap"
	"samovar/internal/fault"
	"samovar/internal/store/disk"
	"samovar/internal/volume"
)

// harmless tells whether a name may stand in a folder that is about to become a pool: what mkfs puts there, and
// what a CreatePool left that did not finish.
func harmless(name string) bool {
	switch name {
	case "lost+found", lockName, spareName, identityName + temporary, probeName:
		return true
	}
	return false
}

// CreatePool makes a pool in an empty folder, or in a new one. now is written down for people.
func CreatePool(fsys disk.FS, dir string, id Identity, now time.Time) error {
	op := "create pool " + id.Name + " in " + dir
	if id.Pool == (volume.PoolID{}) || id.Cluster == ([16]byte{}) || id.Name == "" || len(id.Name) > 255 {
		return fault.New(fault.Invalid, op, "a pool needs an id, the id of its cluster, and a name")
	}
	if err := fsys.Mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return diskFault(op, err)
	}
	// Also if the folder was there: an earlier try may have made it and failed right here.
	if err := fsys.SyncDir(path.Dir(path.Clean(dir))); err != nil {
		return diskFault(op, err)
	}
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return diskFault(op, err)
	}
	for _, e := range entries {
		if e.Name == identityName {
			return fault.New(fault.Exists, op, "there is a pool already; choose another folder")
		}
	}
	for _, e := range entries {
		if !harmless(e.Name) {
			return fault.New(fault.Exists, op, "the folder is not empty ("+e.Name+"); choose an empty one")
		}
	}
	lock, err := fsys.Lock(path.Join(dir, lockName), "a command that creates a pool")
	if err != nil {
		return fault.Wrap(fault.Busy, op, err)
	}
	defer lock.Close()
	content, err := encodeIdentity(id, now)
	if err != nil {
		return err
	}
	return diskFault(op, replaceFile(fsys, dir, identityName, content))
}

// replicaDir is the folder of a volume's replica.
func (p *Pool) replicaDir(id volume.ID) string { return path.Join(p.dir, replicaPrefix+id.String()) }

// CreateReplica makes a replica that reads as zero. Its state starts as s, with c as the accepted configuration;
// missing is what it lacks, if s says that it is catching up. A replica or a folder of that name must not exist.
// A crash leaves all of it or a leftover.
func (p *Pool) CreateReplica(c volume.Configuration, s volume.ReplicaState, missing *bitmap.Bitmap) error {
	op := "create replica of volume " + c.Name + " (" + c.Volume.String() + ") on pool " + p.identity.Name
	if err := c.Validate(); err != nil {
		return fault.Wrap(fault.Invalid, op, err)
	}
	if (s.Volume != volume.ID{} && s.Volume != c.Volume) || (s.Pool != volume.PoolID{} && s.Pool != p.identity.Pool) {
		return fault.New(fault.Foreign, op, "the state belongs to another replica")
	}
	if s.CatchingUp != (missing != nil) || outside(missing, blocksOf(c.Size)) || len(s.History) > volume.HistoryLength {
		return fault.New(fault.Invalid, op, "a replica that catches up, and only that, needs a set of missing blocks")
	}
	s.Volume, s.Pool, s.Accepted = c.Volume, p.identity.Pool, c
	if err := p.hold(op, c.Volume); err != nil {
		return err
	}
	defer p.release(c.Volume, nil)
	if _, err := p.fs.Stat(p.replicaDir(c.Volume)); err == nil {
		return fault.New(fault.Exists, op, "there is one already; open it, or delete it first")
	} else if !errors.Is(err, fs.ErrNotExist) {
		return diskFault(op, err)
	}
	have, err := p.Available()
	if err != nil {
		return err
	}
	if need := uint64(p.options.LogCapacity) + 64<<10; have < need {
		return fault.Wrap(fault.NoSpace, op, p.full(need, have))
	}
	return keepKind(op, p.build(s, missing))
}

// build makes the folder under a name that is no replica, and gives it its name when all is on stable storage.
func (p *Pool) build(s volume.ReplicaState, missing *bitmap.Bitmap) error {
	dir := path.Join(p.dir, creatingPrefix+s.Volume.String())
	// What an earlier creation left was never a replica, and nobody else creates this one: see hold.
	if err := removeTree(p.fs, dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := p.fs.Mkdir(dir); err != nil {
		return err
	}
	err := p.fill(dir, s, missing)
	if err == nil {
		err = p.fs.Rename(dir, p.replicaDir(s.Volume))
	}
	if err != nil {
		_ = removeTree(p.fs, dir)
		return err
	}
	return p.fs.SyncDir(p.dir)
}

func (p *Pool) fill(dir string, s volume.ReplicaState, missing *bitmap.Bitmap) error {
	data, err := p.fs.Open(path.Join(dir, dataName), disk.Create|disk.Exclusive)
	if err != nil {
		return err
	}
	err = data.SetSize(int64(s.Accepted.Size))
	if err == nil {
		err = data.Sync()
	}
	if closed := data.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	state, err := encodeState(s)
	if err != nil {
		return err
	}
	log := encodeLog(s.Pool, s.Volume, p.random64(), p.options.LogCapacity, &bitmap.Bitmap{})
	if err := writeFile(p.fs, path.Join(dir, logName), log); err != nil {
		return err
	}
	if missing != nil {
		if err := writeFile(p.fs, path.Join(dir, missingName), encodeMissing(s.Pool, s.Volume, missing)); err != nil {
			return err
		}
	}
	if err := writeFile(p.fs, path.Join(dir, stateName), state); err != nil {
		return err
	}
	return p.fs.SyncDir(dir)
}

// keepKind gives an error its kind unless it has one.
func keepKind(op string, err error) error {
	if err == nil || fault.KindOf(err) == fault.Internal {
		return diskFault(op, err)
	}
	return fault.Wrap(fault.KindOf(err), op, err)
}

// OpenReplica opens a replica and tells all that is stored about it. The incarnation is new.
func (p *Pool) OpenReplica(id volume.ID) (*Replica, volume.Stored, error) {
	op := "open replica of volume " + id.String() + " on pool " + p.identity.Name
	if err := p.hold(op, id); err != nil {
		return nil, volume.Stored{}, err
	}
	r, stored, err := p.openReplica(op, id)
	closed := p.release(id, r)
	if err != nil {
		return nil, volume.Stored{}, err
	}
	if closed {
		_ = r.Close()
		return nil, volume.Stored{}, fault.New(fault.Shutdown, op, "the pool is closed")
	}
	p.random(stored.Incarnation[:])
	return r, stored, nil
}

func (p *Pool) openReplica(op string, id volume.ID) (*Replica, volume.Stored, error) {
	dir := p.replicaDir(id)
	if _, err := p.fs.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, volume.Stored{}, fault.New(fault.NotFound, op,
			"there is none; check that the pool's disk is the right one, or create the replica by an explicit command")
	} else if err != nil {
		return nil, volume.Stored{}, diskFault(op, err)
	}
	stored, err := p.contents(id, dir)
	if err != nil {
		return nil, volume.Stored{}, err
	}
	r := newReplica(p, id, dir)
	r.size = stored.State.Accepted.Size
	r.catchingUp, r.missingSaved = stored.State.CatchingUp, stored.State.CatchingUp
	if err := r.openData(); err != nil {
		return nil, volume.Stored{}, diskFault(op, err)
	}
	// What an earlier process renamed or wrote may still be in the cache only: from here on it is relied upon.
	err = p.fs.SyncDir(p.dir)
	if err == nil {
		err = p.fs.SyncDir(dir)
	}
	if err != nil {
		r.data.file.Close()
		return nil, volume.Stored{}, diskFault(op, err)
	}
	r.log.change(stored.Log, nil)
	if err := r.log.commit(); err != nil {
		// Every opening starts a new log file, for nobody knows what an earlier process could not sync. On a full
		// disk the old one stays until the next change, which then has to succeed.
		r.log.distrust()
		p.options.Logger.Warn("the log could not be rewritten", "volume", id.String(), "pool", p.identity.Name, "error", err)
	}
	p.removeTemporary(dir)
	return r, stored, nil
}

// removeTemporary removes files that were being written when an earlier process ended.
func (p *Pool) removeTemporary(dir string) {
	entries, _ := p.fs.ReadDir(dir)
	for _, e := range entries {
		if !e.Dir && strings.HasSuffix(e.Name, temporary) {
			_ = p.fs.Remove(path.Join(dir, e.Name))
		}
	}
}

// openData opens the data file past the page cache, or through it where that cannot be.
func (r *Replica) openData() error {
	p, name := r.pool, path.Join(r.dir, dataName)
	space, err := p.fs.Space(r.dir)
	if err != nil {
		return err
	}
	r.data = dataFile{size: r.size, buffers: p.buffers, zeroes: p.zeroes.Bytes()}
	if p.options.Buffered {
		r.buffered = "direct I/O is switched off"
	} else {
		r.data.file, err = p.fs.Open(name, disk.Direct)
		switch {
		case errors.Is(err, disk.ErrNoDirect):
			r.buffered = "the file system (" + space.Kind + ") has no direct I/O"
		case err != nil:
			return err
		case int64(r.size)%r.data.file.Limits().Offset != 0:
			r.buffered = "the size of the volume is not a multiple of the disk's block"
			r.data.file.Close()
		}
	}
	if r.buffered != "" {
		if r.data.file, err = p.fs.Open(name, 0); err != nil {
			return err
		}
		if !p.saidNoCache.Swap(true) {
			p.options.Logger.Warn("data goes through the page cache", "pool", p.identity.Name, "reason", r.buffered)
		}
	}
	r.data.limits = r.data.file.Limits()
	r.data.granule = max(4096, space.BlockSize, r.data.limits.Offset)
	return nil
}
