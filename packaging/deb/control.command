Package: eskit-lease
Architecture: any
Multi-Arch: foreign
Depends: ${shlibs:Depends}
Recommends: ca-certificates
Description: run programs under leases in PostgreSQL, with fencing tokens
 eskit-lease starts a program, in whatever language, while it leads, once for
 each partition that it owns, or once for a key in all machines. It ends the
 program before another one may begin. It also shows who holds what.
 .
 It needs no server on the machine: it reaches a PostgreSQL that has the
 extension eskit_lease, which the packages postgresql-NN-eskit-lease bring.
