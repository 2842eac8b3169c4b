package store

import (
	"errors"
	"io/fs"
	"path"
	"strings"
	"time"

	"samovar/internal/fault"
	"samovar/internal/volume"
)

// Info is what a pool tells about itself.
type Info struct {
	Identity Identity
	Dir      string
	Created  time.Time
	Kind     string // of the file system
	// Backend is what carries out data I/O, BackendURing or BackendPool; Reason says why.
	Backend, Reason string
	// Bytes. Free is what the file system has; Reserved is never given to data; Promised is granted.
	Total, Free, Reserved, Promised uint64
	// SpareSpent: the disk was full, small files took their spare space.
	SpareSpent bool
	Replicas   []ReplicaInfo
	Leftovers  []Leftover
}

// ReplicaInfo is what a pool tells about one replica.
type ReplicaInfo struct {
	Volume volume.ID
	Name   string // of the volume, if it could be read
	Size   uint64
	Used   uint64 // bytes on the disk
	Open   bool
	// Fault says why the replica cannot be used, or is nil.
	Fault error
	// Buffered says why an open replica uses the page cache; empty if it does not.
	Buffered string
	// SyncLoss is Replica.SyncLoss of an open replica.
	SyncLoss error
}

// LeftoverKind is what a leftover once was.
type LeftoverKind uint8

// The kinds of leftovers.
const (
	HalfCreated LeftoverKind = 1 // a CreateReplica that did not finish; it never held data
	Tombstone   LeftoverKind = 2 // a deleted replica
	Unknown     LeftoverKind = 3 // not of this version of the store; Purge refuses it
)

// Leftover is something in a pool that is no replica.
type Leftover struct {
	Name    string // for Purge
	Kind    LeftoverKind
	Volume  volume.ID
	Deleted time.Time // of a tombstone
	Bytes   uint64    // on the disk
	Reason  string
}

// tombstoneTime is how a tombstone's name ends: UTC, and in the order of time.
const tombstoneTime = "20060102T150405.000000000Z"

// Info gathers everything about the pool. It reads the small files of all replicas that are not open, so that
// damage shows before somebody needs them.
func (p *Pool) Info() (Info, error) {
	op := "inspect pool " + p.identity.Name
	space, err := p.fs.Space(p.dir)
	if err != nil {
		return Info{}, diskFault(op, err)
	}
	entries, err := p.fs.ReadDir(p.dir)
	if err != nil {
		return Info{}, diskFault(op, err)
	}
	p.mu.Lock()
	info := Info{
		Identity: p.identity, Dir: p.dir, Created: p.created, Kind: space.Kind,
		Backend: p.backendName, Reason: p.backendReason,
		Total: uint64(space.Total), Free: uint64(space.Free), Reserved: p.reserve, Promised: p.promised,
		SpareSpent: p.options.Spare >= 0 && p.spareUsed.Load() == spareSpent,
	}
	p.mu.Unlock()
	for _, e := range entries {
		switch e.Name {
		case identityName, lockName, spareName, "lost+found", identityName + temporary, probeName:
			continue
		}
		if text, is := strings.CutPrefix(e.Name, replicaPrefix); is && e.Dir {
			if id, err := volume.ParseID(text); err == nil {
				info.Replicas = append(info.Replicas, p.inspect(id))
				continue
			}
		}
		info.Leftovers = append(info.Leftovers, p.leftover(e.Name))
	}
	return info, nil
}

// Replicas lists the volumes that have a replica here, usable or not, in the order of their ids.
func (p *Pool) Replicas() ([]volume.ID, error) {
	entries, err := p.fs.ReadDir(p.dir)
	if err != nil {
		return nil, diskFault("list replicas of pool "+p.identity.Name, err)
	}
	var list []volume.ID
	for _, e := range entries {
		if text, is := strings.CutPrefix(e.Name, replicaPrefix); is && e.Dir {
			if id, err := volume.ParseID(text); err == nil {
				list = append(list, id)
			}
		}
	}
	return list, nil
}

func (p *Pool) inspect(id volume.ID) ReplicaInfo {
	dir := p.replicaDir(id)
	info := ReplicaInfo{Volume: id, Used: allocatedTree(p.fs, dir)}
	p.mu.Lock()
	r := p.open[id]
	p.mu.Unlock()
	if r != nil {
		info.Open, info.Size, info.Buffered, info.SyncLoss = true, r.size, r.buffered, r.SyncLoss()
		file, err := readFile(p.fs, path.Join(dir, stateName))
		if err == nil {
			if s, err := parseState(file, p.identity.Pool, id); err == nil {
				info.Name = s.Accepted.Name
			}
		}
		return info
	}
	stored, err := p.contents(id, dir)
	info.Fault, info.Name, info.Size = err, stored.State.Accepted.Name, stored.State.Accepted.Size
	return info
}

func (p *Pool) leftover(name string) Leftover {
	l := Leftover{Name: name, Kind: Unknown, Bytes: allocatedTree(p.fs, path.Join(p.dir, name)),
		Reason: "it is not of this version of samovar"}
	if text, is := strings.CutPrefix(name, creatingPrefix); is {
		if id, err := volume.ParseID(text); err == nil {
			l.Kind, l.Volume, l.Reason = HalfCreated, id, "the creation of a replica did not finish"
		}
	}
	if text, is := strings.CutPrefix(name, tombstonePrefix); is {
		id, when, _ := strings.Cut(text, "-")
		parsed, err := volume.ParseID(id)
		deleted, bad := time.Parse(tombstoneTime, when)
		if err == nil && bad == nil {
			l.Kind, l.Volume, l.Deleted, l.Reason = Tombstone, parsed, deleted, "the replica was deleted"
		}
	}
	return l
}

// DeleteReplica turns a replica, usable or not, into a tombstone, which keeps its bytes until Purge.
func (p *Pool) DeleteReplica(id volume.ID) (tombstone string, err error) {
	op := "delete replica of volume " + id.String() + " on pool " + p.identity.Name
	if err := p.hold(op, id); err != nil {
		return "", err
	}
	defer p.release(id, nil)
	name := tombstonePrefix + id.String() + "-" + p.options.Now().UTC().Format(tombstoneTime)
	err = p.fs.Rename(p.replicaDir(id), path.Join(p.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return "", fault.New(fault.NotFound, op, "there is none")
	}
	if err == nil {
		err = p.fs.SyncDir(p.dir)
	}
	return name, diskFault(op, err)
}

// Purge gives the space of a leftover back. It takes the name that Info gave, and nothing but tombstones and
// half-created replicas.
func (p *Pool) Purge(name string) error {
	op := "purge " + name + " on pool " + p.identity.Name
	l := p.leftover(name)
	if l.Kind == Unknown || strings.ContainsRune(name, '/') {
		return fault.New(fault.Invalid, op, "it is neither a deleted nor a half-created replica")
	}
	if l.Kind == HalfCreated { // the creation may be under way
		if err := p.hold(op, l.Volume); err != nil {
			return err
		}
		defer p.release(l.Volume, nil)
	}
	// The bytes go only when the name is lasting: else a crash could bring a replica back without them.
	err := p.fs.SyncDir(p.dir)
	if err == nil {
		err = removeTree(p.fs, path.Join(p.dir, name))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.NotFound, op, "there is none")
	}
	if err == nil {
		err = p.fs.SyncDir(p.dir)
	}
	p.fillSpare()
	return diskFault(op, err)
}
