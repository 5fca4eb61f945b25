r"""The studio: a local page on which a 2-D energy is trained and looked at.

=========================  =====================================================================
`fokker.studio.form`       the typed settings, described for a page
`fokker.studio.request`    what the page asks for, checked
`fokker.studio.view`       pictures of an energy: density, score, particles, and its evolution
`fokker.studio.worker`     the process that trains and draws
`fokker.studio.session`    one open page and its workers
`fokker.studio.export`     a run folder with the script that makes it again
`fokker.studio.server`     the pages and the socket, on this machine only
=========================  =====================================================================

The page itself is written in TypeScript, in the folder `studio` of the repository, and comes built
in `static`. The server needs the extra `studio`: ``pip install 'fokker[studio]'``.
"""

__all__: list[str] = []
