// Package etcdtest offers the cluster's record store in memory, for the tests of those who use it, and the one suite
// that every implementation of kv.Store passes.
//
// A Memory is the cluster; each Client is one process that talks to it, with faults of its own. Time passes only by
// Advance. It must not import etcd: a consumer's test links in a second.
package etcdtest

import (
	"fmt"
	"sort"
	"strings"
	"sync"
	"time"

	"samovar/internal/etcd/kv"
	"samovar/internal/fault"
)

// Memory is a store in memory.
type Memory struct {
	mu        sync.Mutex // guards everything below, and the fields of clients and sessions
	minTTL    time.Duration
	now       time.Time
	revision  int64
	compacted int64 // history before this revision is gone
	data      map[string]kv.KV
	history   []kv.Event // one event a revision, in order
	leases    map[kv.LeaseID]*lease
	lastLease kv.LeaseID
	sessions  map[*session]bool
	changed   chan struct{} // closed and replaced whenever a watch may have something to do
	down      bool          // no majority
}

type lease struct {
	ttl     time.Duration
	expires time.Time
}

// New makes an empty store.
func New() *Memory {
	return &Memory{minTTL: time.Second, now: time.Unix(1_000_000_000, 0), revision: 1, data: map[string]kv.KV{},
		leases: map[kv.LeaseID]*lease{}, sessions: map[*session]bool{}, changed: make(chan struct{})}
}

// Client makes a process that uses the store.
func (m *Memory) Client() *Client { return newClient(m) }

// Advance lets time pass. Sessions of clients that reach the store are renewed; others are lost when a TTL has passed
// since they were. Leases that are not renewed expire and take their keys with them.
func (m *Memory) Advance(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.renew() // those who could renew did so up to now
	m.now = m.now.Add(d)
	m.renew()
	m.settle()
}

// SetMajority takes the majority away, or gives it back.
func (m *Memory) SetMajority(there bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down = !there
	m.settle()
}

// Compact forgets the history before revision, as Client.Compact of package etcd.
func (m *Memory) Compact(revision int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.compacted = max(m.compacted, revision)
	i := sort.Search(len(m.history), func(i int) bool { return m.history[i].Revision >= m.compacted })
	m.history = append([]kv.Event(nil), m.history[i:]...)
	m.wake()
}

// Revoke ends a lease behind its holder's back, who notices at once.
func (m *Memory) Revoke(id kv.LeaseID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dropLease(id)
	m.settle()
}

// renew prolongs the leases whose holders reach the store.
func (m *Memory) renew() {
	for s := range m.sessions {
		if l := m.leases[s.id]; l != nil && !m.down && !s.client.cut {
			l.expires = m.now.Add(l.ttl)
			s.until = l.expires
		}
	}
}

// settle ends what is due: sessions without a lease or without a renewal, leases that expired.
func (m *Memory) settle() {
	if !m.down {
		for _, id := range m.expired() {
			m.dropLease(id)
		}
	}
	for s := range m.sessions {
		reaches := !m.down && !s.client.cut
		if !m.now.Before(s.until) || reaches && m.leases[s.id] == nil {
			m.lose(s)
		}
	}
	m.wake()
}

// expired lists the leases that are due, in order, so that runs repeat.
func (m *Memory) expired() []kv.LeaseID {
	var ids []kv.LeaseID
	for id, l := range m.leases {
		if !m.now.Before(l.expires) {
			ids = append(ids, id)
		}
	}
	sort.Slice(ids, func(i, j int) bool { return ids[i] < ids[j] })
	return ids
}

// lose tells the holder that the session is over.
func (m *Memory) lose(s *session) {
	if m.sessions[s] {
		delete(m.sessions, s)
		close(s.lost)
	}
}

// dropLease removes a lease and its keys, all at one revision.
func (m *Memory) dropLease(id kv.LeaseID) {
	if m.leases[id] == nil {
		return
	}
	delete(m.leases, id)
	var changes []kv.Change
	for key, r := range m.data {
		if r.Lease == id {
			changes = append(changes, kv.Change{Key: key, Remove: true})
		}
	}
	sort.Slice(changes, func(i, j int) bool { return changes[i].Key < changes[j].Key })
	m.apply(changes)
}

// transact is a transaction as a majority applies it.
func (m *Memory) transact(op string, conditions []kv.Condition, changes []kv.Change) kv.Outcome {
	holds := true
	var current []kv.KV
	for _, c := range conditions {
		r, there := m.data[c.Key]
		holds = holds && r.ModRevision == c.ModRevision
		if there {
			current = append(current, copied(r))
		}
	}
	if !holds {
		return kv.Conflicting(op, m.revision, conditions, current)
	}
	for _, c := range changes {
		if !c.Remove && c.Lease != 0 && m.leases[c.Lease] == nil {
			return kv.Refused(fault.New(fault.NotFound, op, fmt.Sprintf("no such lease: %x", c.Lease)))
		}
	}
	m.apply(changes)
	return kv.Done(m.revision)
}

// apply makes changes at one new revision. Without any effect there is no new revision.
func (m *Memory) apply(changes []kv.Change) {
	event := kv.Event{Revision: m.revision + 1}
	for _, c := range changes {
		old, there := m.data[c.Key]
		switch {
		case c.Remove && !there:
			continue
		case c.Remove:
			delete(m.data, c.Key)
			event.Items = append(event.Items, kv.Item{KV: kv.KV{Key: c.Key, ModRevision: event.Revision}, Deleted: true})
			continue
		}
		r := kv.KV{Key: c.Key, Value: append([]byte(nil), c.Value...), CreateRevision: event.Revision,
			ModRevision: event.Revision, Lease: c.Lease}
		if there {
			r.CreateRevision = old.CreateRevision
		}
		m.data[c.Key] = r
		event.Items = append(event.Items, kv.Item{KV: r})
	}
	if len(event.Items) == 0 {
		return
	}
	m.revision = event.Revision
	m.history = append(m.history, event)
	m.wake()
}

func (m *Memory) list(prefix string) kv.Listing {
	list := kv.Listing{Revision: m.revision}
	for key, r := range m.data {
		if strings.HasPrefix(key, prefix) {
			list.Items = append(list.Items, copied(r))
		}
	}
	sort.Slice(list.Items, func(i, j int) bool { return list.Items[i].Key < list.Items[j].Key })
	return list
}

// wake lets every watch look again.
func (m *Memory) wake() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// copied protects the store from a reader who writes into what it was given.
func copied(r kv.KV) kv.KV {
	r.Value = append([]byte(nil), r.Value...)
	return r
}
