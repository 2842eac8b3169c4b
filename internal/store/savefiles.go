package store

import (
	"errors"
	"io/fs"
	"path"
	"strings"

	"samovar/internal/fault"
	"samovar/internal/volume"
)

// Names of the files of a replica.
const (
	dataName     = "data"
	stateName    = "state"
	missingName  = "missing"
	recordPrefix = "record-"
)

func recordName(pool volume.PoolID) string { return recordPrefix + pool.String() }

// encode makes the file that an operation saves. It runs within Submit, so that the owner's state may change
// again right after.
func (r *Replica) encode(op *Op) (err error) {
	op.name, op.file, op.state = "", nil, nil
	switch op.Code {
	case SaveState:
		s := *op.State
		if s.Volume != r.id || s.Pool != r.pool.identity.Pool || s.Accepted.Volume != r.id {
			return fault.New(fault.Invalid, r.op("save state"), "the state belongs to another replica")
		}
		if len(s.History) > volume.HistoryLength {
			return fault.New(fault.Invalid, r.op("save state"), "the history is too long")
		}
		op.name, op.state = stateName, &volume.ReplicaState{CatchingUp: s.CatchingUp}
		op.file, err = encodeState(s)
	case SaveRecord:
		op.name, op.file = recordName(op.Record.Pool), encodeRecord(r.pool.identity.Pool, r.id, op.Record)
	case DropRecord:
		op.name = recordName(op.Record.Pool)
	case SaveMissing:
		op.name, op.file = missingName, encodeMissing(r.pool.identity.Pool, r.id, op.Missing)
	}
	return err
}

// runFiles saves small files, one after the other.
func (r *Replica) runFiles(batch opList) {
	for op := batch.pop(); op != nil; op = batch.pop() {
		err := r.save(op)
		op.file, op.state = nil, nil
		r.finish(op, err)
	}
}

func (r *Replica) save(op *Op) error {
	switch {
	case op.Code == DropRecord:
		err := r.pool.fs.Remove(path.Join(r.dir, op.name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	case op.Code == SaveState && op.state.CatchingUp && !r.missingSaved:
		// A missing file left over from an earlier time must never be taken for this one.
		return fault.New(fault.Invalid, r.op("save state"), "what is missing must be saved before the state says so")
	}
	if err := r.pool.replace(r.dir, op.name, op.file); err != nil {
		return err
	}
	switch op.Code {
	case SaveMissing:
		r.missingSaved = true
	case SaveState:
		if r.catchingUp && !op.state.CatchingUp {
			// It is of no use now. If it comes back in a crash nobody looks: the state does not ask for it.
			r.missingSaved = false
			_ = r.pool.fs.Remove(path.Join(r.dir, missingName))
		}
		r.catchingUp = op.state.CatchingUp
	}
	return nil
}

// contents reads and checks all small files of a replica's folder.
func (p *Pool) contents(id volume.ID, dir string) (volume.Stored, error) {
	op := "open replica of volume " + id.String() + " on pool " + p.identity.Name
	pool := p.identity.Pool
	var stored volume.Stored
	read := func(name string, parse func(file []byte) error) error {
		file, err := readFile(p.fs, path.Join(dir, name))
		if err == nil {
			err = parse(file)
		}
		return withFile(op, path.Join(dir, name), err)
	}
	err := read(stateName, func(file []byte) (err error) {
		stored.State, err = parseState(file, pool, id)
		return err
	})
	if err != nil {
		return stored, err
	}
	size := stored.State.Accepted.Size
	err = read(logName, func(file []byte) error {
		content, err := parseLog(file, pool, id, size)
		content.regions.Runs(func(from, to uint64) bool {
			for ; from < to; from++ {
				stored.Log = append(stored.Log, from)
			}
			return true
		})
		return err
	})
	if err == nil && stored.State.CatchingUp {
		err = read(missingName, func(file []byte) (err error) {
			stored.Missing, err = parseMissing(file, pool, id, size)
			return err
		})
	}
	if err != nil {
		return stored, err
	}
	if stored.Records, err = p.records(id, dir, size, read); err != nil {
		return stored, err
	}
	info, err := p.fs.Stat(path.Join(dir, dataName))
	if err == nil && (info.Dir || info.Size != int64(size)) {
		err = fault.New(fault.Corrupt, "check data", "its size is not that of the volume")
	}
	return stored, withFile(op, path.Join(dir, dataName), err)
}

// records reads the change records in a replica's folder.
func (p *Pool) records(
	id volume.ID, dir string, size uint64, read func(string, func([]byte) error) error,
) ([]volume.ChangeRecord, error) {
	entries, err := p.fs.ReadDir(dir)
	if err != nil {
		return nil, diskFault("read folder "+dir, err)
	}
	var records []volume.ChangeRecord
	for _, e := range entries {
		text, is := strings.CutPrefix(e.Name, recordPrefix)
		if !is || strings.HasSuffix(e.Name, temporary) {
			continue
		}
		err := read(e.Name, func(file []byte) error {
			record, err := parseRecord(file, p.identity.Pool, id, size)
			if err == nil && record.Pool.String() != text {
				err = fault.New(fault.Foreign, "check record", "it is about pool "+record.Pool.String())
			}
			records = append(records, record)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return records, nil
}
