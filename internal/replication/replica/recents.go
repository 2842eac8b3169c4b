package replica

import (
	"samovar/internal/bitmap"
	"samovar/internal/replication"
	"samovar/internal/volume"
)

// recent is a write-like request that the engine has not yet declared completed on every in-sync replica.
type recent struct {
	id uint64
	at volume.Range
}

// recents remembers them (rule 13): exactly, up to a limit; beyond it the dirty log stands in until everything that
// was not remembered is completed. Doubt of older epochs is kept in blocks.
type recents struct {
	list      []recent // ascending IDs
	wide      bool     // some are not in the list
	wideUntil uint64   // highest ID that is not in the list
	inherited bitmap.Bitmap
}

// add remembers a request. A replayed one is there already, or was completed.
func (c *recents) add(id uint64, at volume.Range, replayed bool, limit int) {
	switch {
	case replayed:
	case len(c.list) >= limit:
		c.wide, c.wideUntil = true, id
	default:
		c.list = append(c.list, recent{id, at})
	}
}

// complete forgets requests up to id.
func (c *recents) complete(id uint64) {
	n := 0
	for n < len(c.list) && c.list[n].id <= id {
		n++
	}
	if n > 0 {
		c.list = append(c.list[:0], c.list[n:]...)
	}
	if c.wide && c.wideUntil <= id {
		c.wide = false
	}
}

// forget drops one request (a planted bug).
func (c *recents) forget(id uint64) {
	for i := range c.list {
		if c.list[i].id == id {
			c.list = append(c.list[:i], c.list[i+1:]...)
			return
		}
	}
}

// doubt adds ranges to the inherited doubt.
func (c *recents) doubt(ranges []volume.Range) {
	for _, g := range ranges {
		c.inherited.Add(replication.Blocks(g))
	}
}

// inherit turns the list into inherited doubt: a new fence has been raised.
func (c *recents) inherit() {
	for _, e := range c.list {
		c.inherited.Add(replication.Blocks(e.at))
	}
	c.list, c.wide, c.wideUntil = c.list[:0], false, 0
}

// clear forgets everything: it is known elsewhere, durably.
func (c *recents) clear() {
	c.inherit()
	c.inherited.Clear()
}

// ranges lists all of it, within size bytes.
func (c *recents) ranges(size uint64) []volume.Range {
	var out []volume.Range
	for _, e := range c.list {
		out = append(out, e.at)
	}
	c.inherited.Runs(func(from, to uint64) bool {
		start := from * volume.BlockSize
		out = append(out, volume.Range{Offset: start, Length: min(to*volume.BlockSize, size) - start})
		return true
	})
	return out
}
