package control

import (
	"context"

	"samovar/internal/etcd/kv"
	"samovar/internal/fault"
	"samovar/internal/replication/engine"
	"samovar/internal/volume"
)

// records keeps volumes' records in the cluster store, for engines.
type records struct{ store kv.Store }

// Propose writes next if the record still has revision next.Revision. Revisions repeat after the store was restored
// from a copy, so the record's epoch and engine must fit as well.
func (r records) Propose(ctx context.Context, next volume.Configuration) (engine.Outcome, volume.Configuration) {
	current, err := r.Look(ctx, next.Volume)
	if fault.Is(err, fault.NotFound) {
		return engine.Conflict, volume.Configuration{}
	}
	if err != nil {
		return engine.Unknown, volume.Configuration{}
	}
	foreign := current.Epoch > next.Epoch || current.Epoch == next.Epoch && next.Engine != (volume.EngineID{}) &&
		current.Engine != next.Engine
	if current.Revision != next.Revision || foreign {
		return engine.Conflict, current
	}
	out := r.store.CompareAndSwap(ctx, volumeKey(next.Volume), int64(next.Revision), encode(next), 0)
	switch out.Verdict {
	case kv.Applied:
		next.Revision = volume.Revision(out.Revision)
		return engine.Applied, next
	case kv.Conflict:
		if len(out.Current) == 1 {
			if c, err := configuration(out.Current[0]); err == nil {
				return engine.Conflict, c
			}
		}
		return engine.Conflict, volume.Configuration{}
	}
	// Also for what was certainly not written: the engine looks, and proposes again.
	return engine.Unknown, volume.Configuration{}
}

// Look reads the record linearizably.
func (r records) Look(ctx context.Context, id volume.ID) (volume.Configuration, error) {
	rec, err := r.store.Get(ctx, volumeKey(id))
	if err != nil {
		return volume.Configuration{}, err
	}
	return configuration(rec)
}

func configuration(r kv.KV) (c volume.Configuration, err error) {
	if err := decode(r.Key, r.Value, &c); err != nil {
		return c, err
	}
	c.Revision = volume.Revision(r.ModRevision)
	return c, nil
}
