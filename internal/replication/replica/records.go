package replica

import (
	"slices"

	"samovar/internal/bitmap"
	"samovar/internal/replication"
	"samovar/internal/volume"
)

// changeRecord is a volume.ChangeRecord with the marks that are not yet durable.
type changeRecord struct {
	volume.ChangeRecord
	unsaved bool
}

// changeRecords holds one record for each absent replica. Marks are durable no later than the data because the
// data's region stands in the log, and a restart marks every region in the log.
type changeRecords struct{ all []*changeRecord } // ordered by pool

func newChangeRecords(stored []volume.ChangeRecord) changeRecords {
	var c changeRecords
	for _, s := range stored {
		c.set(volume.ChangeRecord{Pool: s.Pool, Start: s.Start, Blocks: s.Blocks.Clone()})
	}
	return c
}

func (c *changeRecords) find(pool volume.PoolID) (int, bool) {
	return slices.BinarySearchFunc(c.all, pool, func(e *changeRecord, p volume.PoolID) int {
		return slices.Compare(e.Pool[:], p[:])
	})
}

func (c *changeRecords) get(pool volume.PoolID) *changeRecord {
	if i, ok := c.find(pool); ok {
		return c.all[i]
	}
	return nil
}

// set replaces or adds the record of a pool.
func (c *changeRecords) set(rec volume.ChangeRecord) {
	if rec.Blocks == nil {
		rec.Blocks = &bitmap.Bitmap{}
	}
	e := &changeRecord{ChangeRecord: rec, unsaved: true}
	i, ok := c.find(rec.Pool)
	if ok {
		c.all[i] = e
	} else {
		c.all = slices.Insert(c.all, i, e)
	}
}

func (c *changeRecords) remove(pool volume.PoolID) {
	if i, ok := c.find(pool); ok {
		c.all = slices.Delete(c.all, i, i+1)
	}
}

// mark notes that every absent replica lacks a range.
func (c *changeRecords) mark(g volume.Range) {
	for _, e := range c.all {
		from, to := replication.Blocks(g)
		e.Blocks.Add(from, to)
		e.unsaved = true
	}
}

func (c *changeRecords) snapshot() []volume.ChangeRecord {
	out := make([]volume.ChangeRecord, 0, len(c.all))
	for _, e := range c.all {
		out = append(out, volume.ChangeRecord{Pool: e.Pool, Start: e.Start, Blocks: e.Blocks.Clone()})
	}
	return out
}
