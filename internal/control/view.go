package control

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"samovar/internal/etcd/kv"
	"samovar/internal/fault"
	"samovar/internal/volume"
)

// view is a copy of the cluster store, kept up to date by a watch. It may lag: decisions that need the truth read the
// store itself.
type view struct {
	mu       sync.Mutex // guards what follows
	keys     map[string]kv.KV
	revision int64
	synced   bool
	trouble  string        // why a majority does not answer
	changed  chan struct{} // closed and replaced at every change
}

func newView() *view { return &view{keys: map[string]kv.KV{}, changed: make(chan struct{})} }

// follow applies what happens in the store until ctx ends.
func (v *view) follow(ctx context.Context, store kv.Store) {
	for e := range store.Watch(ctx, "", 0) {
		v.apply(e)
	}
}

// probe notes every second whether a majority answers, until ctx ends.
func (v *view) probe(ctx context.Context, store kv.Store) {
	for pause(ctx, time.Second) {
		call, cancel := context.WithTimeout(ctx, 3*time.Second)
		_, err := store.Revision(call)
		cancel()
		trouble := ""
		if err != nil {
			trouble = err.Error()
		}
		v.mu.Lock()
		v.trouble = trouble
		v.mu.Unlock()
	}
}

func (v *view) apply(e kv.Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if e.Resync {
		v.keys = map[string]kv.KV{}
		v.synced = true
	}
	for _, it := range e.Items {
		if it.Deleted {
			delete(v.keys, it.Key)
		} else {
			v.keys[it.Key] = it.KV
		}
	}
	v.revision = e.Revision
	close(v.changed)
	v.changed = make(chan struct{})
}

// change is closed at the next change.
func (v *view) change() <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.changed
}

// ready tells whether the store has been read once.
func (v *view) ready() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.synced {
		return nil
	}
	text := "it has not been reached since this node started; a majority of its members must run"
	if v.trouble != "" {
		text += " (" + v.trouble + ")"
	}
	return fault.New(fault.Unavailable, "read the cluster store", text)
}

func (v *view) state() (trouble string, revision int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.trouble, v.revision
}

func (v *view) get(key string) (kv.KV, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	r, ok := v.keys[key]
	return r, ok
}

// list gives the records under prefix in order of their keys.
func (v *view) list(prefix string) []kv.KV {
	v.mu.Lock()
	defer v.mu.Unlock()
	var out []kv.KV
	for k, r := range v.keys {
		if strings.HasPrefix(k, prefix) {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b kv.KV) int { return strings.Compare(a.Key, b.Key) })
	return out
}

// each decodes every record under prefix; a damaged one is left out.
func each[T any](v *view, prefix string, f func(name string, value T)) {
	for _, r := range v.list(prefix) {
		var value T
		if decode(r.Key, r.Value, &value) == nil {
			f(strings.TrimPrefix(r.Key, prefix), value)
		}
	}
}

// find decodes one record.
func find[T any](v *view, key string) (value T, ok bool) {
	r, ok := v.get(key)
	if !ok || decode(key, r.Value, &value) != nil {
		var none T
		return none, false
	}
	return value, true
}

// online tells whether a node runs, as far as this one knows.
func (v *view) online(node string) bool {
	_, ok := v.get("nodes/" + node)
	return ok
}

func (v *view) pool(id volume.PoolID) (poolRecord, bool) { return find[poolRecord](v, poolKey(id)) }

// poolLabel names a pool and its node for people.
func (v *view) poolLabel(id volume.PoolID) string {
	if p, ok := v.pool(id); ok {
		return "pool " + p.Name + " of node " + p.Node
	}
	return "pool " + id.String()
}

func (v *view) volumeName(id volume.ID) string {
	if c, ok := find[volume.Configuration](v, volumeKey(id)); ok {
		return c.Name
	}
	return id.String()
}

// volumeID finds a volume by name.
func (v *view) volumeID(name string) (volume.ID, bool) {
	r, ok := v.get("names/" + name)
	if !ok {
		return volume.ID{}, false
	}
	id, err := volume.ParseID(string(r.Value))
	return id, err == nil
}
