"""A page of the public web for a model, as a tool to offer.

from libmachine.web import web_fetch

machine = Machine(intent="...", tools=[web_fetch])
"""

from libmachine.web.tool import web_fetch as web_fetch
