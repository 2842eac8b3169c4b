// Package nbd speaks the Network Block Device protocol: a server that exports block devices, and a client that
// is one. docs/protocol/nbd.md says in plain words what is supported and what is not.
//
// Its job ends at block.Device and block.Opener. It must not know of replication, volumes' configurations or
// the control plane: who holds a volume, and why an opening is refused, reaches the client as an error's text.
//
// A server session, one connection, is two goroutines:
//
//	          connection                                  device
//	              | read                                     ^
//	  negotiate --+--> receive: parse all that one read  ----+ Submit(batch)
//	   (options)  |    brought, payloads into buffers        |
//	              |                                          v Done, from any goroutine
//	              +<-- reply: gather, one vectored write <-- replies (queue)
//
//	accepted -> negotiating -> transmitting -> draining -> closed
//
// Draining waits for every request that the device has, whatever made the session end; only then is the opening
// given back. Memory is bounded by the session's slots: a request holds one, and its bytes, from the moment its
// header is parsed until its reply is written; when they run out nothing more is read from the socket.
//
// Why CAN_MULTI_CONN is honest. The flag promises that a flush covers everything that was answered, on any
// connection of the export, before the server processes the flush. A reply is queued only by the device's Done,
// so what was answered was completed at the device; a flush is handed to Submit only after its header was read,
// which is later; and Device.Submit(Flush) covers everything completed on any opening before it. The server
// keeps no cache of its own and acknowledges nothing itself, so there is nothing that one connection could hide
// from another. Requests still in flight when the flush is processed need not be covered, in any batch order.
//
// Lock order: Server.mu, then session.mu. The locks of slots, replies, flight and sendQueue are leaves. No I/O
// and no callback happens under any of them.
package nbd
