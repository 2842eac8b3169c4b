// Package store keeps the bytes of replicas on one pool: a folder on one disk of one node. It must not know
// peers, the network or the cluster's store; it imports the vocabulary, and reaches disks through disk.FS alone.
//
//	pool/                              made by CreatePool, never by itself
//	├── identity                       pool id, cluster id, name
//	├── lock                           flock of the process that has the pool open
//	├── spare                          space for small files when the disk is full
//	├── volume-<volume id>/            a replica; made by CreateReplica, never by itself
//	│   ├── data                       the volume's bytes, sparse, exactly its size
//	│   ├── state                      fence, accepted configuration, history, catching up or not
//	│   ├── log                        regions that may differ from other replicas
//	│   ├── record-<pool id>           what the replica on that pool lacks
//	│   └── missing                    what this replica lacks while it catches up
//	├── creating-<volume id>/          a CreateReplica that did not finish
//	└── tombstone-<volume id>-<time>/  a deleted replica, until Purge
//
// Every file but data is framed (frame.go): magic, version, length, checksum, and whom it belongs to. The
// pages under docs/format have the formats. A file that is missing, damaged, foreign or newer makes its
// replica unusable, with a fault that says so; the others go on.
//
// The way of a request:
//
//	Submit ─┬─ Read, Write, Zero ... ──▶ backend (io_uring, or workers with plain calls) ─┬─▶ Done
//	        ├─ Sync, and Zero with FUA behind its effect ──▶ sync lane: one fdatasync for all that wait
//	        ├─ LogChange ──▶ log lane: one write and one fdatasync for all that wait
//	        └─ SaveState, SaveRecord ... ──▶ file lane: one after the other
//
// A lane is a queue with at most one goroutine, which ends when the queue is empty.
//
// Locks: Pool.mu and the locks of queues guard memory only and are never held over I/O or a callback, nor
// together. The one exception by design is dataFile.edges, which orders read-modify-write cycles of one block.
package store

// Version is the store version of this binary: the highest version of any file that it writes. It only goes
// up. Files of a lower version are read, files of a higher one refused.
const Version = 1
